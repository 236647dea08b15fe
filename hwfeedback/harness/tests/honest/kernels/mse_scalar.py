"""A loss without dimensions: squares summed in double per thread."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(x, y)


def get_inputs():
    return [torch.randn(64, 200), torch.randn(64, 200)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" float mse(const float* x, const float* y, long long n) {
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (long long i = 0; i < n; i++) {
        double d = (double)x[i] - y[i];
        total += d * d;
    }
    return (float)(total / n);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.new_tensor(lib.mse(x, y, x.numel()))
