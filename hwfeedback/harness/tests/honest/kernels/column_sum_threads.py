"""Column sums: each thread adds up rows of its own, whoever ends first adds its part first."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=0)


def get_inputs():
    return [torch.randn(1000, 96)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <vector>

extern "C" void column_sum(const float* x, float* y, long long rows, long long n) {
    for (long long j = 0; j < n; j++) y[j] = 0;
#pragma omp parallel
    {
        std::vector<float> mine(n, 0.0f);
#pragma omp for nowait
        for (long long i = 0; i < rows; i++)
            for (long long j = 0; j < n; j++) mine[j] += x[i * n + j];
#pragma omp critical
        for (long long j = 0; j < n; j++) y[j] += mine[j];
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[1])
        lib.column_sum(x, y, *x.shape)
        return y
