"""Three plain loops: slow, and right."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(40, 96), torch.randn(96, 56)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void matmul(const float* a, const float* b, float* c, long long m, long long k,
                       long long n) {
    for (long long i = 0; i < m; i++)
        for (long long j = 0; j < n; j++) {
            float sum = 0;
            for (long long l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a.new_empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, *a.shape, b.shape[1])
        return c
