"""Row sums by Kahan's compensated addition: nearer to the truth than the reference."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs():
    return [torch.randn(32, 2000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void row_sum(const float* x, float* y, long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        float sum = 0, lost = 0, plain = 0;
        for (long long j = 0; j < n; j++) {
            float v = x[i * n + j] - lost;
            float next = sum + v;
            lost = (next - sum) - v;
            sum = next;
            plain += x[i * n + j];
        }
        // Past infinity the compensation is Inf - Inf.
        y[i] = isfinite(sum) ? sum : plain;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0])
        lib.row_sum(x, y, *x.shape)
        return y
