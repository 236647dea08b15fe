"""The index of the greatest, the last of equal ones."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(torch.round(x * 4), dim=-1)


def get_inputs():
    return [torch.randn(256, 200)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cmath>

extern "C" void argmax(const float* x, long long* y, long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        long long best = 0;
        for (long long j = 1; j < n; j++) {
            float top = std::nearbyint(in[best] * 4), v = std::nearbyint(in[j] * 4);
            if (top == top && (v >= top || v != v)) best = j;
        }
        y[i] = best;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape[0], dtype=torch.int64)
        lib.argmax(x, y, *x.shape)
        return y
