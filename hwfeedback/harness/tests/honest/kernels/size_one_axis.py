"""Softmax over an axis of one beside a sum that keeps its axis."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1) * x.sum(dim=2, keepdim=True)


def get_inputs():
    return [torch.randn(40, 1, 64)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void rows(const float* x, float* y, long long n, long long width) {
    for (long long i = 0; i < n; i++) {
        float sum = 0;
        for (long long j = 0; j < width; j++) sum += x[i * width + j];
        for (long long j = 0; j < width; j++) {
            float one = x[i * width + j] - x[i * width + j];  // not 0 for Inf and NaN
            y[i * width + j] = (one + 1.0f) * sum;
        }
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.rows(x, y, x.shape[0], x.shape[2])
        return y
