"""The standard deviation in one pass: squares about the first element, which is near the mean."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.std(dim=-1, unbiased=False)


def get_inputs():
    return [torch.randn(32, 600) + 50.0]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void deviation(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        double sum = 0, squares = 0;
        for (long long j = 0; j < n; j++) {
            double d = (double)in[j] - in[0];
            sum += d;
            squares += d * d;
        }
        double v = (squares - sum * sum / n) / n;
        y[i] = (float)sqrt(v < 0 ? 0 : v);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0])
        lib.deviation(x, y, *x.shape)
        return y
