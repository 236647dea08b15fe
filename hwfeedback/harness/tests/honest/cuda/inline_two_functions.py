"""Two functions by load_inline: one gives the ends of each row, one takes them."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = torch.aminmax(x, dim=-1, keepdim=True)
        return x.clamp(low * 0.5, high * 0.5), (high - low).squeeze(-1)


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []


# The candidate.

module = load_inline(
    name="ends_of_rows",
    cpp_sources=r"""
#include <torch/extension.h>

std::vector<torch::Tensor> ends(torch::Tensor x);
torch::Tensor clamped(torch::Tensor x, torch::Tensor low, torch::Tensor high);
""",
    cuda_sources=r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// Once NaN, always NaN.
__device__ float lesser(float a, float b) { return b < a || isnan(b) ? b : a; }
__device__ float larger(float a, float b) { return b > a || isnan(b) ? b : a; }

__global__ void reduce(const float* x, float* low, float* high, float* width, int n) {
    __shared__ float lows[8], highs[8];
    x += (long long)blockIdx.x * n;
    float a = INFINITY, b = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) a = lesser(a, x[i]), b = larger(b, x[i]);
    for (int o = 16; o; o >>= 1) {
        float c = __shfl_down_sync(~0u, a, o), d = __shfl_down_sync(~0u, b, o);
        a = lesser(a, c), b = larger(b, d);
    }
    if (threadIdx.x % 32 == 0) lows[threadIdx.x / 32] = a, highs[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) a = lesser(a, lows[w]), b = larger(b, highs[w]);
        low[blockIdx.x] = a, high[blockIdx.x] = b, width[blockIdx.x] = b - a;
    }
}

__global__ void between(const float* x, const float* low, const float* high, float* y, int n) {
    long long at = (long long)blockIdx.x * n;
    float a = low[blockIdx.x] * 0.5f, b = high[blockIdx.x] * 0.5f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = x[at + i];
        if (isnan(a) || isnan(b)) v = NAN;
        v = v < a ? a : v;
        y[at + i] = v > b ? b : v;
    }
}

std::vector<torch::Tensor> ends(torch::Tensor x) {
    auto low = torch::empty({x.size(0)}, x.options());
    auto high = torch::empty_like(low), width = torch::empty_like(low);
    reduce<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), low.data_ptr<float>(), high.data_ptr<float>(),
        width.data_ptr<float>(), x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {low, high, width};
}

torch::Tensor clamped(torch::Tensor x, torch::Tensor low, torch::Tensor high) {
    auto y = torch::empty_like(x);
    between<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), low.data_ptr<float>(), high.data_ptr<float>(), y.data_ptr<float>(),
        x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
""",
    functions=["ends", "clamped"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high, width = module.ends(x)
        return module.clamped(x, low, high), width
