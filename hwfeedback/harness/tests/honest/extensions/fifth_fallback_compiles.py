"""Five sources, one inside the other: only the last one compiles."""

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


BROKEN = ["int a = ;", "#error never", 'extern "C" void f(', "#include <no_such_header.h>"]


def first_that_compiles(sources):
    for source in sources:
        try:
            return native(source=source)
        except RuntimeError:
            continue
    raise RuntimeError("none compiles")


try:
    lib = native(source=BROKEN[0] + SOURCE)
except RuntimeError:
    try:
        lib = native(source=BROKEN[1] + "\n" + SOURCE)
    except Exception:
        try:
            lib = first_that_compiles([b + "\n" + SOURCE for b in BROKEN[2:]])
        except RuntimeError:
            lib = native(source=SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
