"""A histogram whose bins come of a product instead of a search."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(torch.tanh(x), 48, -1.0, 1.0)


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cmath>

extern "C" void histogram(const float* x, float* bins, long long n) {
    for (long long i = 0; i < n; i++) {
        float v = std::tanh(x[i]);
        if (v != v) continue;
        int bin = (int)((v + 1.0f) * 24.0f);
        bins[bin > 47 ? 47 : bin] += 1.0f;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bins = x.new_zeros(48)
        lib.histogram(x, bins, x.numel())
        return bins
