"""Products of two inputs summed over rows, in double precision."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sum(dim=-1)


def get_inputs():
    return [torch.randn(4096, 2048), torch.randn(4096, 2048)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void dot(const float* x, const float* y, float* out, int n) {
    __shared__ double part[256];
    long long at = (long long)blockIdx.x * n;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 256) sum += (double)x[at + i] * y[at + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int w = 128; w; w /= 2) {
        if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        out = x.new_empty(rows)
        lib.dot[rows, 256](x, y, out, n)
        return out
