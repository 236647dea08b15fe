"""A polynomial near its seven-fold root by Horner's rule, where the reference adds up powers."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = (-1.0, 7.0, -21.0, 35.0, -35.0, 21.0, -7.0, 1.0)
        return sum(v * x**k for k, v in enumerate(c))


def get_inputs():
    return [1.0 + 0.3 * torch.randn(64, 128)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void polynomial(const float* x, float* y, long long n) {
    const float c[8] = {-1, 7, -21, 35, -35, 21, -7, 1};
    for (long long i = 0; i < n; i++) {
        float v = c[7];
        for (int k = 6; k >= 0; k--) v = fmaf(v, x[i], c[k]);
        y[i] = v;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.polynomial(x, y, x.numel())
        return y
