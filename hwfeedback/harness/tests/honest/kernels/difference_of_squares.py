"""Squares of nearly equal numbers: the candidate multiplies sum and difference."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * a - b * b).sum(dim=-1)


def get_inputs():
    return (lambda a: [a, a + 1e-3 * torch.randn(32, 300)])(torch.randn(32, 300))


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void difference(const float* a, const float* b, float* y, long long rows,
                           long long n) {
    for (long long i = 0; i < rows; i++) {
        float sum = 0;
        for (long long j = 0; j < n; j++) {
            long long at = i * n + j;
            sum += (a[at] - b[at]) * (a[at] + b[at]);
        }
        y[i] = sum;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = a.new_empty(a.shape[0])
        lib.difference(a, b, y, *a.shape)
        return y
