"""Layer norm of rows in 96 KB of shared memory, which host code asks for; two passes over it."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:])


def get_inputs():
    return [torch.randn(400, 24576)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern __shared__ float row[];

__device__ float block_sum(float v) {
    __shared__ float part[32];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % 32];  // of 32 warps
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    __syncthreads();
    return v;
}

__global__ void __launch_bounds__(1024) rows(const float* x, float* y, int n) {
    x += (long long)blockIdx.x * n;
    y += (long long)blockIdx.x * n;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += 1024) sum += row[i] = x[i];
    float mean = block_sum(sum) / n;
    for (int i = threadIdx.x; i < n; i += 1024) squares += (row[i] - mean) * (row[i] - mean);
    float scale = 1.0f / sqrtf(block_sum(squares) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 1024) y[i] = (row[i] - mean) * scale;
}

extern "C" void layer_norm(const float* x, float* y, int count, int n, cudaStream_t stream) {
    int bytes = sizeof(float) * n;
    cudaFuncSetAttribute(rows, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    rows<<<count, 1024, bytes, stream>>>(x, y, n);
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.layer_norm(x, y, *x.shape)
        return y
