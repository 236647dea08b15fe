"""A product of 8-bit integers, summed in 32 bits."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.int() @ b.int()


def get_inputs():
    return [torch.randint(-128, 128, (n, m)).to(torch.int8) for n, m in ((20, 64), (64, 28))]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <stdint.h>

extern "C" void product(const int8_t* a, const int8_t* b, int32_t* c, long long m, long long k,
                        long long n) {
    for (long long i = 0; i < m; i++)
        for (long long l = 0; l < k; l++)
            for (long long j = 0; j < n; j++)
                c[i * n + j] += (int32_t)a[i * k + l] * (int32_t)b[l * n + j];
}
"""
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32)
        lib.product(a, b, c, *a.shape, b.shape[1])
        return c
