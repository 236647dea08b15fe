"""A table that the reference has once under two names; the candidate has two."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, words: int, n: int):
        super().__init__()
        self.table = nn.Embedding(words, n)
        self.head = nn.Linear(n, words)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(ids)))


def get_inputs():
    return [torch.randint(0, 96, (20,))]


def get_init_inputs():
    return [96, 32]


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
    def __init__(self, words: int, n: int):
        super().__init__()
        self.table = nn.Embedding(words, n)
        self.head = nn.Linear(n, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return affine(torch.tanh(self.table(ids)), self.head.weight, self.head.bias)
