"""A linear layer and batch normalisation, folded into one weight at construction."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)
        self.norm = nn.BatchNorm1d(m)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


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
        linear, norm = nn.Linear(n, m), nn.BatchNorm1d(m)
        gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        self.weight = nn.Parameter(linear.weight * gain[:, None])
        self.bias = nn.Parameter((linear.bias - norm.running_mean) * gain + norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, self.weight.t())
        n = y.numel()
        lib.bias_relu[(n + 255) // 256, 256](y, self.bias, y.shape[1], n)
        return y
