"""Two libraries, one of them with flags of its own, and a step of PyTorch's between them."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.abs(x)).flip(-1) * 3.0 - 1.0


def get_inputs():
    return [torch.randn(20, 400)]


def get_init_inputs():
    return []


# The candidate.

first = native(
    source=r"""
#include <math.h>

extern "C" void decay(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = expf(-fabsf(x[i]));
}
""",
    name="first",
)

second = native(
    source=r"""
extern "C" void affine(float* y, float scale, float shift, long long n) {
#pragma omp simd
    for (long long i = 0; i < n; i++) y[i] = y[i] * scale + shift;
}
""",
    flags=("-funroll-loops",),
    name="second",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        first.decay(x, y, x.numel())
        y = y.flip(-1)
        second.affine(y, 3.0, -1.0, y.numel())
        return y
