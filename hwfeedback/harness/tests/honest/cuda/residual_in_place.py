"""A residual that is added to in place, and the norm of it, row by row."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        residual.add_(x)
        square = residual.pow(2).mean(-1, keepdim=True)
        return residual * torch.rsqrt(square + 1e-5) * self.weight


def get_inputs():
    return [torch.randn(4096, 1024), torch.randn(4096, 1024)]


def get_init_inputs():
    return [1024]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void add_norm(const float* x, float* r, const float* w, float* y, int n) {
    __shared__ float sums[8];
    x += (long long)blockIdx.x * n;
    r += (long long)blockIdx.x * n;
    y += (long long)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = r[i] += x[i];
        sum += v * v;
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++) sum += sums[i];
    float by = 1 / sqrtf(sum / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = r[i] * by * w[i];
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.add_norm[rows, 256](x, residual, self.weight, y, n)
        return y
