"""Softmax as three functions of one library, with scratch that is kept between calls."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(16, 64, 12)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" {

void maxima(const float* x, float* top, long long rows, long long n, long long inner) {
    for (long long i = 0; i < rows; i++)
        for (long long c = 0; c < inner; c++) {
            float m = -INFINITY;
            for (long long j = 0; j < n; j++) {
                float v = x[(i * n + j) * inner + c];
                m = v > m || isnan(v) ? v : m;
            }
            top[i * inner + c] = m;
        }
}

void exponentials(const float* x, const float* top, float* y, float* sum, long long rows,
                  long long n, long long inner) {
    for (long long i = 0; i < rows; i++)
        for (long long c = 0; c < inner; c++) {
            float total = 0;
            for (long long j = 0; j < n; j++) {
                long long at = (i * n + j) * inner + c;
                total += y[at] = expf(x[at] - top[i * inner + c]);
            }
            sum[i * inner + c] = total;
        }
}

void scale(float* y, const float* sum, long long rows, long long n, long long inner) {
    for (long long i = 0; i < rows * n * inner; i++)
        y[i] /= sum[i / (n * inner) * inner + i % inner];
}

}
"""
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scratch = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n, inner = x.shape
        if self.scratch is None or self.scratch.shape != (2, rows, inner):
            self.scratch = x.new_empty(2, rows, inner)
        top, total = self.scratch
        y = torch.empty_like(x)
        lib.maxima(x, top, rows, n, inner)
        lib.exponentials(x, top, y, total, rows, n, inner)
        lib.scale(y, total, rows, n, inner)
        return y
