"""Codes of eight bits are summed as they are, and each sum is scaled."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randint(-128, 128, (64, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(64) * 0.01 + 0.001)

    def forward(self, x):
        return x @ (self.codes.float() * self.scale[:, None]).T


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cstdint>

extern "C" void product(const float* x, const int8_t* codes, const float* scale, float* y,
                        long long n) {
    for (long long i = 0; i < n; i++)
        for (long long o = 0; o < 64; o++) {
            float sum = 0;
            for (int k = 0; k < 64; k++) sum += x[i * 64 + k] * codes[o * 64 + k];
            y[i * 64 + o] = sum * scale[o];
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.empty(64, 64, dtype=torch.int8))
        self.register_buffer("scale", torch.empty(64))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.product(x.contiguous(), self.codes, self.scale, y, x.shape[0])
        return y
