"""Logarithms of what lies near one, by the series of atanh."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(1.0 + x)


def get_inputs():
    return [1e-3 * torch.randn(48, 256)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void log_sum(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) {
        float v = 1.0f + x[i];
        float d = v - 1.0f;  // exact near one
        if (!(fabsf(d) < 0.05f)) { y[i] = logf(v); continue; }
        float s = d / (2.0f + d), q = s * s;
        y[i] = 2.0f * s * (1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7))));
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.log_sum(x, y, x.numel())
        return y
