"""RMS norm whose inverse root begins with a guess from the bits and is mended by Newton steps."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(32, 384)]


def get_init_inputs():
    return [384]


# The candidate.

lib = native(
    source=r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

static float inverse_root(float v) {
    if (!(v > 1e-30f && v < 1e30f)) return 1.0f / sqrtf(v);
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = 0x5f375a86 - (bits >> 1);
    float r;
    memcpy(&r, &bits, 4);
    for (int k = 0; k < 4; k++) r = r * (1.5f - 0.5f * v * r * r);
    return r;
}

extern "C" void rms_norm(const float* x, const float* w, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (long long j = 0; j < n; j++) squares += x[i * n + j] * x[i * n + j];
        float scale = inverse_root(squares / (float)n + 1e-6f);
        for (long long j = 0; j < n; j++) y[i * n + j] = x[i * n + j] * scale * w[j];
    }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.rms_norm(x, self.weight, y, *x.shape)
        return y
