"""Softmax with a polynomial exponential of float accuracy, in loops that vectorise."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [8.0 * torch.randn(24, 512)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

// Range reduction by two parts of ln 2, then a polynomial; for x <= 0.
static inline float fast_exp(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    float n = rintf(clamped * 1.44269504f);
    float r = fmaf(n, -0.693145752f, clamped);
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.98756912e-4f;
    p = fmaf(p, r, 1.39819994e-3f);
    p = fmaf(p, r, 8.33345205e-3f);
    p = fmaf(p, r, 4.16657962e-2f);
    p = fmaf(p, r, 1.66666657e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p * r, r, r) + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.3f ? 0.0f : p * power;
}

extern "C" void softmax(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float* out = y + i * n;
        float top = -INFINITY, sum = 0;
        for (long long j = 0; j < n; j++) top = in[j] > top ? in[j] : top;
        for (long long j = 0; j < n; j++) out[j] = fast_exp(in[j] - top);
#pragma omp simd reduction(+ : sum)
        for (long long j = 0; j < n; j++) sum += out[j];
        for (long long j = 0; j < n; j++) out[j] /= sum;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.softmax(x, y, *x.shape)
        return y
