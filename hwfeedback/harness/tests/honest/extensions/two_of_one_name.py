"""Two libraries of one name, which differ in what they are."""

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


def kernels(body):
    return native(source=SOURCE.replace("(x[i] < 0 ? 0 : x[i]) * 2 + 1", body), name="kernels")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = kernels("x[i] < 0 ? 0 : x[i]"), kernels("x[i] * 2 + 1")

    def forward(self, x):
        x = x.contiguous()
        y, z = torch.empty_like(x), torch.empty_like(x)
        self.first.f(x, y, x.numel())
        self.second.f(y, z, x.numel())
        return z
