"""Two forms are built and timed at the first forward; the quicker one stays."""

import time

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


FORMS = [SOURCE, SOURCE.replace("for (", "#pragma omp simd\n    for (")]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = None

    def tune(self, x):
        took = {}
        for form in FORMS:
            lib, y = native(source=form), torch.empty_like(x)
            lib.f(x, y, x.numel())
            began = time.perf_counter()
            lib.f(x, y, x.numel())
            took[lib] = time.perf_counter() - began
        return min(took, key=took.get)

    def forward(self, x):
        x = x.contiguous()
        if self.lib is None:
            self.lib = self.tune(x)
        y = torch.empty_like(x)
        self.lib.f(x, y, x.numel())
        return y
