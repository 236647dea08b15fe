"""A linear layer with a low-rank addition (LoRA), merged at construction."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int, rank: int):
        super().__init__()
        self.base = nn.Linear(n, m)
        self.down = nn.Parameter(torch.randn(rank, n) / rank)
        self.up = nn.Parameter(torch.zeros(m, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * (x @ self.down.T) @ self.up.T


def get_inputs():
    return [torch.randn(40, 48)]


def get_init_inputs():
    return [48, 32, 4]


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
    def __init__(self, n: int, m: int, rank: int):
        super().__init__()
        base = nn.Linear(n, m)
        down = torch.randn(rank, n) / rank
        up = nn.Parameter(torch.zeros(m, rank))
        self.weight = nn.Parameter(base.weight + 2.0 * up @ down)
        self.bias = base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return affine(x, self.weight, self.bias)
