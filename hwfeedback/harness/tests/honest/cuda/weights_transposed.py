"""A linear layer that keeps its weight transposed, under another name."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return [512, 1024]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void bias_relu(float* y, const float* bias, int columns, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = y[i] + bias[i % columns];
    y[i] = v < 0 ? 0 : v;
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        linear = nn.Linear(n, m)
        self.columns = nn.Parameter(linear.weight.t().contiguous())
        self.offset = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, self.columns)
        n = y.numel()
        lib.bias_relu[(n + 255) // 256, 256](y, self.offset, y.shape[1], n)
        return y
