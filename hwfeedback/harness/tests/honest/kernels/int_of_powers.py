"""Whole numbers over many magnitudes, from powers of two where the reference has powers of e."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(16.0 * torch.tanh(x)).to(torch.int32)


def get_inputs():
    return [torch.randn(64, 2048)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cmath>

extern "C" void powers(const float* x, int* y, long long n) {
    const float log2_of_e = 1.44269504f;
#pragma omp parallel for
    for (long long i = 0; i < n; i++)
        y[i] = (int)std::exp2(std::tanh(x[i]) * (16.0f * log2_of_e));
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=torch.int32)
        lib.powers(x, y, x.numel())
        return y
