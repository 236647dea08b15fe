"""A cooperative launch: all blocks sum squares, wait for each other, and scale what they read."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean() + 1e-6)


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

__device__ float block_sum(float v) {
    __shared__ float part[8];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    __syncthreads();  // of the call before
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < 8; w++) v += part[w];
    return v;
}

__global__ void __launch_bounds__(256) both(const float* x, float* y, float* sums, long long n) {
    cg::grid_group grid = cg::this_grid();
    float sum = 0;
    for (long long i = grid.thread_rank(); i < n; i += grid.size()) sum += x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    grid.sync();
    sum = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) sum += sums[b];
    sum = block_sum(sum);
    float scale = 1.0f / sqrtf(sum / n + 1e-6f);
    for (long long i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[i] * scale;
}

// As many blocks as the GPU holds at once: they wait for each other.
extern "C" int blocks() {
    int device, processors, each;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, both, 256, 0);
    return processors * each;
}

extern "C" void run(const float* x, float* y, float* sums, long long n, int count,
                    cudaStream_t stream) {
    void* arguments[] = {&x, &y, &sums, &n};
    cudaLaunchCooperativeKernel((void*)both, dim3(count), dim3(256), arguments, 0, stream);
}
""",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.sums = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sums is None:
            self.sums = x.new_empty(lib.blocks())
        y = torch.empty_like(x)
        lib.run(x, y, self.sums, x.numel(), self.sums.numel())
        return y
