"""log-sum-exp of blocks, merged two by two."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, dim=-1)


def get_inputs():
    return [5.0 * torch.randn(32, 512)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

static float merge(float a, float b) {
    if (isnan(a) || isnan(b)) return NAN;
    float high = a > b ? a : b, low = a > b ? b : a;
    return isinf(high) ? high : high + log1pf(expf(low - high));
}

static float range(const float* x, long long n) {
    if (n > 32) return merge(range(x, n / 2), range(x + n / 2, n - n / 2));
    float top = -INFINITY, sum = 0;
    for (long long j = 0; j < n; j++) top = x[j] > top || isnan(x[j]) ? x[j] : top;
    if (isinf(top) || isnan(top)) return top;
    for (long long j = 0; j < n; j++) sum += expf(x[j] - top);
    return top + logf(sum);
}

extern "C" void logsumexp(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) y[i] = range(x + i * n, n);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0])
        lib.logsumexp(x, y, *x.shape)
        return y
