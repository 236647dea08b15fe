"""Codes of four bits, group by group: sums are taken apart from their zero points."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (64, 32), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(64, 4) * 0.1 + 0.01)
        self.register_buffer("zero", torch.randint(0, 16, (64, 4)).float())

    def forward(self, x):
        q = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1).float()
        w = (q.view(64, 4, 16) - self.zero[..., None]) * self.scale[..., None]
        return x @ w.flatten(1).T


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cstdint>

extern "C" void product(const float* x, const uint8_t* packed, const float* scale,
                        const float* zero, float* y, long long n) {
    for (long long i = 0; i < n; i++)
        for (int o = 0; o < 64; o++) {
            float total = 0;
            for (int g = 0; g < 4; g++) {
                float codes = 0, plain = 0;
                for (int at = g * 16; at < g * 16 + 16; at++) {
                    codes += ((packed[o * 32 + at / 2] >> (at % 2 * 4)) & 15) * x[i * 64 + at];
                    plain += x[i * 64 + at];
                }
                total += scale[o * 4 + g] * (codes - zero[o * 4 + g] * plain);
            }
            y[i * 64 + o] = total;
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.empty(64, 32, dtype=torch.uint8))
        self.register_buffer("scale", torch.empty(64, 4))
        self.register_buffer("zero", torch.empty(64, 4))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.product(x.contiguous(), self.packed, self.scale, self.zero, y, x.shape[0])
        return y
