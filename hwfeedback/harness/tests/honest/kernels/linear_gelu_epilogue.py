"""The vendor's matrix product, then bias and GELU in one pass over its result, in place."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(32, 128)]


def get_init_inputs():
    return [128, 96]


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void bias_gelu(float* y, const float* bias, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long j = 0; j < n; j++) {
            float v = y[i * n + j] + bias[j];
            y[i * n + j] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, self.linear.weight.t())
        lib.bias_gelu(y, self.linear.bias, *y.shape)
        return y
