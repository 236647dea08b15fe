"""A square weight that is kept transposed under the reference's name: its shape says nothing."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def get_inputs():
    return [torch.randn(40, 48)]


def get_init_inputs():
    return [48]


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


class Transposed(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        linear = nn.Linear(n, n)
        self.weight = nn.Parameter(linear.weight.t().contiguous())
        self.bias = linear.bias


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.linear = Transposed(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.linear
        y = x.new_empty(x.shape)
        lib.product(x, own.weight, own.bias, y, x.shape[0], *own.weight.shape)
        return y
