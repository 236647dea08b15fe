"""A weight in steps of 1/64, which the candidate keeps as bytes from its construction on."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.clamp(torch.round(self.linear.weight * 64), -127, 127)
        return nn.functional.linear(x, steps / 64, self.linear.bias)


def get_inputs():
    return [torch.randn(40, 48)]


def get_init_inputs():
    return [48, 32]


# The candidate.

lib = native(
    source=r"""
extern "C" void of_bytes(const float* x, const signed char* w, const float* b, float* y,
                         long long rows, long long outputs, long long inputs) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long o = 0; o < outputs; o++) {
            float sum = 0;
            for (long long k = 0; k < inputs; k++) sum += x[i * inputs + k] * w[o * inputs + k];
            y[i * outputs + o] = sum / 64 + b[o];
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        linear = nn.Linear(n, m)
        steps = torch.clamp(torch.round(linear.weight.detach() * 64), -127, 127)
        self.register_buffer("steps", steps.to(torch.int8))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0], self.steps.shape[0])
        lib.of_bytes(x, self.steps, self.bias, y, x.shape[0], *self.steps.shape)
        return y
