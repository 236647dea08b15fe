"""8-bit integers scaled per channel into floats, then summed against a float vector."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x.float() * scale) @ v


def get_inputs():
    return [torch.randint(-128, 128, (50, 120)).to(torch.int8), torch.rand(120), torch.randn(120)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <stdint.h>

extern "C" void weighed(const int8_t* x, const float* scale, const float* v, float* y,
                        long long rows, long long n) {
    for (long long i = 0; i < rows; i++) {
        float even = 0, odd = 0;
        for (long long j = 0; j + 1 < n; j += 2) {
            even += (float)x[i * n + j] * (scale[j] * v[j]);
            odd += (float)x[i * n + j + 1] * (scale[j + 1] * v[j + 1]);
        }
        if (n % 2) even += (float)x[i * n + n - 1] * (scale[n - 1] * v[n - 1]);
        y[i] = even + odd;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = v.new_empty(x.shape[0])
        lib.weighed(x, scale, v, y, *x.shape)
        return y
