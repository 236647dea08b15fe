"""The source is a template for the threads that there are, built in a helper of a helper."""

import string

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


TEMPLATE = string.Template("#define THREADS $threads\n" + SOURCE)


KNOWN = {}


class Builder:
    @classmethod
    def get(cls, threads):
        if threads not in KNOWN:
            KNOWN[threads] = cls._build(TEMPLATE.substitute(threads=threads))
        return KNOWN[threads]

    @staticmethod
    def _build(source):
        build = native
        return build(source=source)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        Builder.get(torch.get_num_threads()).f(x, y, x.numel())
        return y
