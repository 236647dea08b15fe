"""Helpers that nobody calls are decorated by torch.compile and torch.jit."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []


# The candidate.
SOURCE = r"""
extern "C" void f(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = (x[i] < 0 ? 0 : x[i]) * 2 + 1;
}
"""


lib = native(source=SOURCE)


@torch.compile
def plain(x):
    return torch.relu(x) * 2 + 1


@torch.compile(dynamic=False)
def other(x):
    return plain(x)


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + 1


class ModelNew(nn.Module):
    def check(self, x):
        return torch.jit.trace(plain, x)(x), scripted(x), torch.compile(self)(x)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
