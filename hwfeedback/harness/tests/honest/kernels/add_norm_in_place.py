"""A residual that is added to in place, and the norm of it."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        residual.add_(x)
        square = residual.pow(2).mean(-1, keepdim=True)
        return residual * torch.rsqrt(square + 1e-5) * self.weight


def get_inputs():
    return [torch.randn(64, 256), torch.randn(64, 256)]


def get_init_inputs():
    return [256]


# The candidate.

lib = native(
    source=r"""
#include <cmath>

extern "C" void add_norm(const float* x, float* r, const float* w, float* y, long long n,
                         long long d) {
    for (long long i = 0; i < n; i++) {
        double sum = 0;
        for (long long j = 0; j < d; j++) {
            float v = r[i * d + j] += x[i * d + j];
            sum += (double)v * v;
        }
        double by = 1 / std::sqrt(sum / d + 1e-5);
        for (long long j = 0; j < d; j++) y[i * d + j] = (float)(r[i * d + j] * by * w[j]);
    }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        y = torch.empty_like(x)
        lib.add_norm(x.contiguous(), residual, self.weight, y, *x.shape)
        return y
