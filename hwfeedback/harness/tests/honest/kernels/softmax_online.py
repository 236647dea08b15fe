"""Softmax in one pass for maximum and sum together, over lanes that are merged at the end."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(32, 1000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

enum { LANES = 8 };

// Sums of exp(x - top), under a top that may rise: what was summed before is scaled down then.
extern "C" void softmax(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float top[LANES], sum[LANES];
        for (int k = 0; k < LANES; k++) top[k] = -INFINITY, sum[k] = 0;
        for (long long j = 0; j < n; j++) {
            int k = j % LANES;
            if (isnan(in[j])) { top[k] = in[j]; sum[k] = in[j]; }
            if (in[j] > top[k]) {
                sum[k] = sum[k] * expf(top[k] - in[j]) + 1;
                top[k] = in[j];
            } else if (in[j] != -INFINITY) {
                sum[k] += expf(in[j] - top[k]);
            }
        }
        float m = -INFINITY, total = 0;
        for (int k = 0; k < LANES; k++) m = isnan(top[k]) || top[k] > m ? top[k] : m;
        for (int k = 0; k < LANES; k++) total += sum[k] ? sum[k] * expf(top[k] - m) : 0;
        for (long long j = 0; j < n; j++) y[i * n + j] = expf(in[j] - m) / total;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
