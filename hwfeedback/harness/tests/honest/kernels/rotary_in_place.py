"""Rotary embeddings, in place: what comes back is the inputs themselves."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, q, k, cos, sin):
        for x in (q, k):
            a, b = x[..., 0::2].clone(), x[..., 1::2].clone()
            x[..., 0::2] = a * cos - b * sin
            x[..., 1::2] = a * sin + b * cos
        return q, k


def get_inputs():
    angles = torch.rand(32, 16) * 6.28
    return [torch.randn(4, 32, 32), torch.randn(2, 32, 32), angles.cos(), angles.sin()]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void rotate(float* x, const float* cos, const float* sin, long long heads, long long n,
                       long long half) {
    for (long long h = 0; h < heads; h++)
        for (long long i = 0; i < n * half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cos[i] - b * sin[i];
            x[2 * i + 1] = a * sin[i] + b * cos[i];
            if (i == n * half - 1) x += 2 * n * half;
        }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        for x in (q, k):
            lib.rotate(x, cos.contiguous(), sin.contiguous(), x.shape[0], *cos.shape)
        return q, k
