"""A task in float64: the variance, with a fused multiply-add."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.var(dim=0)


def get_inputs():
    return [torch.randn(200, 40, dtype=torch.float64) + 10.0]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void variance(const double* x, double* y, long long rows, long long n) {
    for (long long j = 0; j < n; j++) {
        double mean = 0, squares = 0;
        for (long long i = 0; i < rows; i++) mean += x[i * n + j] / (double)rows;
        for (long long i = 0; i < rows; i++) {
            double d = x[i * n + j] - mean;
            squares = fma(d, d, squares);
        }
        y[j] = squares / (double)(rows - 1);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[1])
        lib.variance(x, y, *x.shape)
        return y
