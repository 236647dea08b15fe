"""One layer that the reference applies under two names; the candidate has it under its own."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.first = nn.Linear(n, n)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def get_inputs():
    return [torch.randn(24, 48)]


def get_init_inputs():
    return [48]


# The candidate.

lib = native(
    source=r"""
extern "C" void affine(const float* x, const float* w, const float* b, float* y, long long rows,
                       long long outputs, long long inputs) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long o = 0; o < outputs; o++) {
            float sum = 0;
            for (long long k = 0; k < inputs; k++) sum += x[i * inputs + k] * w[o * inputs + k];
            y[i * outputs + o] = sum + b[o];
        }
}
"""
)


def affine(x, w, b):
    y = x.new_empty(x.shape[0], w.shape[0])
    lib.affine(x, w, b, y, x.shape[0], w.shape[0], w.shape[1])
    return y


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.layer = nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = affine(x, self.layer.weight, self.layer.bias)
        return affine(torch.tanh(once), self.layer.weight, self.layer.bias)
