"""Softmax of rows that lie in 80 KB of dynamic shared memory while they are worked on."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(512, 20000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
template <bool LARGEST> __device__ float over_block(float v) {
    __shared__ float part[32];
    for (int o = 16; o; o >>= 1) {
        float u = __shfl_xor_sync(~0u, v, o);
        v = LARGEST ? fmaxf(v, u) : v + u;
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < blockDim.x / 32; w++) v = LARGEST ? fmaxf(v, part[w]) : v + part[w];
    return v;
}

extern "C" __global__ void softmax(const float* x, float* y, int n) {
    extern __shared__ float row[];
    x += (long long)blockIdx.x * n;
    y += (long long)blockIdx.x * n;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        row[i] = x[i];
        top = fmaxf(top, row[i]);
    }
    top = over_block<true>(top);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        row[i] = expf(row[i] - top);
        sum += row[i];
    }
    sum = over_block<false>(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = row[i] / sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.softmax[rows, 1024, 4 * n](x, y, n)
        return y
