"""Rows over their norm, scaled by the greatest element first so that no square overflows."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)


def get_inputs():
    return [torch.randn(48, 128)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void normalise(const float* x, float* y, long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float top = 0, squares = 0;
        for (long long j = 0; j < n; j++) top = fabsf(in[j]) > top ? fabsf(in[j]) : top;
        if (top == 0 || isinf(top)) {
            for (long long j = 0; j < n; j++) squares += in[j] * in[j];
            for (long long j = 0; j < n; j++) y[i * n + j] = in[j] / sqrtf(squares);
            continue;
        }
        for (long long j = 0; j < n; j++) squares += (in[j] / top) * (in[j] / top);
        float root = sqrtf(squares);
        for (long long j = 0; j < n; j++) y[i * n + j] = in[j] / top / root;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.normalise(x, y, *x.shape)
        return y
