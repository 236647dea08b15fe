"""A long product split over threads along the inner dimension, parts added in reverse."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(8, 2048), torch.randn(2048, 12)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <vector>

enum { PARTS = 8 };

extern "C" void matmul(const float* a, const float* b, float* c, long long m, long long k,
                       long long n) {
    std::vector<float> parts(PARTS * m * n, 0.0f);
#pragma omp parallel for
    for (int p = 0; p < PARTS; p++) {
        float* mine = parts.data() + p * m * n;
        for (long long l = k * p / PARTS; l < k * (p + 1) / PARTS; l++)
            for (long long i = 0; i < m; i++)
                for (long long j = 0; j < n; j++) mine[i * n + j] += a[i * k + l] * b[l * n + j];
    }
    for (long long i = 0; i < m * n; i++) {
        float sum = 0;
        for (int p = PARTS - 1; p >= 0; p--) sum += parts[p * m * n + i];
        c[i] = sum;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a.new_empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, *a.shape, b.shape[1])
        return c
