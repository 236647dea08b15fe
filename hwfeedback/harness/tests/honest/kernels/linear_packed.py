"""A linear layer over weights that are packed into panels at the first call."""

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
    return [torch.randn(24, 80)]


def get_init_inputs():
    return [80, 50]


# The candidate.

lib = native(
    source=r"""
enum { PANEL = 16 };

extern "C" {

// Panels of 16 outputs, the inputs of a panel one after the other; the last one is padded.
void pack(const float* w, float* packed, long long outputs, long long inputs) {
    for (long long p = 0; p < (outputs + PANEL - 1) / PANEL; p++)
        for (long long k = 0; k < inputs; k++)
            for (long long o = 0; o < PANEL; o++) {
                long long row = p * PANEL + o;
                packed[(p * inputs + k) * PANEL + o] = row < outputs ? w[row * inputs + k] : 0;
            }
}

void product(const float* x, const float* packed, const float* bias, float* y, long long rows,
             long long outputs, long long inputs) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long p = 0; p < (outputs + PANEL - 1) / PANEL; p++) {
            float sum[PANEL] = {0};
            for (long long k = 0; k < inputs; k++)
                for (int o = 0; o < PANEL; o++)
                    sum[o] += x[i * inputs + k] * packed[(p * inputs + k) * PANEL + o];
            for (long long o = 0; o < PANEL && p * PANEL + o < outputs; o++)
                y[i * outputs + p * PANEL + o] = sum[o] + bias[p * PANEL + o];
        }
}

}
"""
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)
        self.packed = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, inputs = self.linear.weight.shape
        if self.packed is None:
            self.packed = x.new_empty(-(-outputs // 16), inputs, 16)
            lib.pack(self.linear.weight, self.packed, outputs, inputs)
        y = x.new_empty(x.shape[0], outputs)
        lib.product(x, self.packed, self.linear.bias, y, x.shape[0], outputs, inputs)
        return y
