"""An output that is a view with strides of its own, over memory that is kept between calls."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x).transpose(1, 2)


def get_inputs():
    return [torch.randn(6, 20, 30)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void sigmoid(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = 1.0f / (1.0f + expf(-x[i]));
}
"""
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = torch.empty_like(x)
        lib.sigmoid(x, self.kept, x.numel())
        return self.kept.transpose(1, 2)
