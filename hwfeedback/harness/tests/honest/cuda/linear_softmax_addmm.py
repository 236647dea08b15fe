"""torch.addmm, and softmax over what it gives, in its place: host code launches a block a row."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), dim=-1)


def get_inputs():
    return [torch.randn(2048, 512)]


def get_init_inputs():
    return [512, 2048]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
__device__ float block_max(float v) {
    __shared__ float part[32];
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < blockDim.x / 32; i++) v = fmaxf(v, part[i]);
    return v;
}

__device__ float block_sum(float v) {
    __shared__ float part[32];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < blockDim.x / 32; i++) v += part[i];
    return v;
}

__global__ void rows(float* y, int n) {
    y += (long long)blockIdx.x * n;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, y[i]);
    top = block_max(top);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(y[i] - top);
    sum = block_sum(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = expf(y[i] - top) / sum;
}

extern "C" void softmax(float* y, int count, int n, cudaStream_t stream) {
    rows<<<count, 256, 0, stream>>>(y, n);
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        lib.softmax(y, *y.shape)
        return y
