"""Cumulative sums from the end: a block scans its row tile by tile, and carries the sum over."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(1).cumsum(1).flip(1)


def get_inputs():
    return [torch.randn(2048, 4000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void scan(const float* x, float* y, int n) {
    __shared__ float sums[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x += (long long)blockIdx.x * n;
    y += (long long)blockIdx.x * n;
    float carry = 0;
    for (int first = 0; first < n; first += 256) {
        int at = n - 1 - first - (int)threadIdx.x;
        float v = at >= 0 ? x[at] : 0.0f;
        for (int o = 1; o < 32; o *= 2) {
            float u = __shfl_up_sync(~0u, v, o);
            if (lane >= o) v += u;
        }
        if (lane == 31) sums[warp] = v;
        __syncthreads();
        float tile = 0, before = 0;
        for (int w = 0; w < 8; w++) {
            if (w == warp) before = tile;
            tile += sums[w];
        }
        if (at >= 0) y[at] = carry + (before + v);
        carry += tile;
        __syncthreads();
    }
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.scan[rows, 256](x, y, n)
        return y
