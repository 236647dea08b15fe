"""Numbers rounded to sixteen steps and back: floats behind a rounding, by a reciprocal."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-8) / 7.0
        return torch.round(x / scale).clamp(-8, 7) * scale


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cmath>

extern "C" void steps(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float top = 1e-8f;
        for (long long j = 0; j < n; j++) {
            float v = std::fabs(in[j]);
            top = v > top || v != v ? v : top;
        }
        float scale = top * (1.0f / 7.0f), inverse = 7.0f / top;
        for (long long j = 0; j < n; j++) {
            float v = std::nearbyint(in[j] * inverse);
            y[i * n + j] = (v < -8 ? -8 : v > 7 ? 7 : v) * scale;
        }
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.steps(x, y, *x.shape)
        return y
