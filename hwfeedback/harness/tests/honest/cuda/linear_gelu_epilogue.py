"""cuBLAS multiplies; bias, GELU and the residual are one kernel over the product, in its place."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x)) + r


def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 2048)]


def get_init_inputs():
    return [1024, 2048]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void epilogue(float* y, const float* bias, const float* r, int columns,
                                    long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = y[i] + bias[i % columns];
    y[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f)) + r[i];
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, self.linear.weight.t())
        n = y.numel()
        lib.epilogue[(n + 255) // 256, 256](y, self.linear.bias, r, y.shape[1], n)
        return y
