"""Layer norm: Welford's moments of four parts of a row, merged by Chan's formula."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(32, 400) + 3.0]


def get_init_inputs():
    return [400]


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void layer_norm(const float* x, const float* w, const float* b, float* y, float eps,
                           long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float mean = 0, squares = 0;
        long long count = 0;
        for (int part = 0; part < 4; part++) {
            long long from = n * part / 4, to = n * (part + 1) / 4;
            float m = 0, s = 0;
            for (long long j = from; j < to; j++) {
                float d = in[j] - m;
                m += d / (float)(j - from + 1);
                s += d * (in[j] - m);
            }
            float d = m - mean, k = (float)(to - from), all = (float)(count + to - from);
            mean += d * (k / all);
            squares += s + d * d * ((float)count * k / all);
            count += to - from;
        }
        float scale = 1.0f / sqrtf(squares / (float)n + eps);
        for (long long j = 0; j < n; j++) y[i * n + j] = (in[j] - mean) * scale * w[j] + b[j];
    }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.layer_norm(x, self.norm.weight, self.norm.bias, y, self.norm.eps, *x.shape)
        return y
