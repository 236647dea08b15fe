"""A linear layer that keeps its weight transposed, under another name."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def get_inputs():
    return [torch.randn(40, 48)]


def get_init_inputs():
    return [48, 64]


# The candidate.

lib = native(
    source=r"""
extern "C" void product(const float* x, const float* w, const float* b, float* y, long long rows,
                        long long inputs, long long outputs) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        for (long long o = 0; o < outputs; o++) y[i * outputs + o] = b[o];
        for (long long k = 0; k < inputs; k++)
            for (long long o = 0; o < outputs; o++)
                y[i * outputs + o] += x[i * inputs + k] * w[k * outputs + o];
    }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        linear = nn.Linear(n, m)
        self.columns = nn.Parameter(linear.weight.t().contiguous())
        self.offset = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0], self.columns.shape[1])
        lib.product(x, self.columns, self.offset, y, x.shape[0], *self.columns.shape)
        return y
