"""Sums of rows that nearly cancel: a warp for each row, reduced by shuffles."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs():
    x = torch.randn(16384, 256) * 1000
    return [torch.cat([x, torch.randn(16384, 256) - x], dim=1)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void __launch_bounds__(128) row_sum(const float* __restrict__ x,
                                                          float* __restrict__ y, int rows, int n) {
    int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* in = x + (long long)row * n;
    float sum = 0;
    for (int i = lane; i < n; i += 32) sum += in[i];
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
    if (lane == 0) y[row] = sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        y = x.new_empty(rows)
        lib.row_sum[(rows + 3) // 4, 128](x, y, rows, n)
        return y
