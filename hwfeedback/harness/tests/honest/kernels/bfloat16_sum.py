"""Sums of bfloat16, accumulated in float and rounded once."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs():
    return [torch.randn(48, 300).bfloat16()]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <stdint.h>
#include <string.h>

extern "C" void row_sum(const uint16_t* x, float* y, long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        float sum = 0;
        for (long long j = 0; j < n; j++) {
            uint32_t bits = (uint32_t)x[i * n + j] << 16;
            float v;
            memcpy(&v, &bits, 4);
            sum += v;
        }
        y[i] = sum;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, *x.shape)
        return y.bfloat16()
