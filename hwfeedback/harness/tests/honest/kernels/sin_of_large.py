"""Sines of arguments in the thousands, reduced in float64; a unit of the input moves the output."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * 5000.0)


def get_inputs():
    return [torch.randn(64, 200)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void sine(const float* x, float* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) {
        double turns = (double)(x[i] * 5000.0f) * 0.15915494309189535;
        double r = (turns - rint(turns)) * 6.283185307179586;
        y[i] = isfinite(turns) && fabs(turns) < 1e9 ? (float)sin(r) : sinf(x[i] * 5000.0f);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.sine(x, y, x.numel())
        return y
