"""get_inputs() gives transposed views; the candidate makes its inputs contiguous in any case."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).t().mean(dim=0)


def get_inputs():
    return [torch.randn(96, 64).t()]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void relu_mean(const float* x, float* y, long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        float sum = 0;
        for (long long j = 0; j < n; j++) sum += x[i * n + j] < 0 ? 0 : x[i * n + j];
        y[i] = sum * (1.0f / (float)n);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = x.new_empty(x.shape[0])
        lib.relu_mean(x, y, *x.shape)
        return y
