"""input, open, exec, compile and eval as parameters, attributes and locals."""

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


class Kernels:
    def __init__(self, open, exec):
        self.open, self.exec = open, exec

    def compile(self, input):
        eval = torch.empty_like(input)
        self.exec(input, eval, self.open)
        return eval


class ModelNew(nn.Module):
    def forward(self, input):
        input = input.contiguous()
        return Kernels(open=input.numel(), exec=lib.f).compile(input=input)
