"""Modules of the standard library: a name by a hash, a variable of the environment, a clock."""

import ctypes
import hashlib
import os
import sys
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


THREADS = int(os.environ.get("KERNEL_THREADS", "1"))
BEGAN = time.perf_counter()
NAME = "k" + hashlib.sha256(SOURCE.encode()).hexdigest()[:8]
assert sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == 8


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = native(source=SOURCE, name=NAME, flags=(f"-DTHREADS={THREADS}",))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        self.lib.f(x, y, x.numel())
        return y
