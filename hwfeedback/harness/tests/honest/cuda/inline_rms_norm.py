"""RMS norm by load_inline: a template for floating types, with a weight, after a guard."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(8192, 1536)]


def get_init_inputs():
    return [1536]


# The candidate.

module = load_inline(
    name="rms_norm_rows",
    cpp_sources="torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps);",
    cuda_sources=r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T>
__global__ void rows(const T* x, const T* weight, T* y, int64_t n, T eps) {
    __shared__ T part[256];
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    T sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += 256) sum += x[i] * x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int w = 128; w; w /= 2) {
        if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
        __syncthreads();
    }
    T scale = T(1) / sqrt(part[0] / n + eps);
    for (int64_t i = threadIdx.x; i < n; i += 256) y[i] = x[i] * scale * weight[i];
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
    TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "rows, contiguous");
    const at::cuda::CUDAGuard guard(x.device());
    auto y = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm", [&] {
        rows<scalar_t><<<x.size(0), 256, 0, stream>>>(
            x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.size(1),
            scalar_t(eps));
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
""",
    functions=["rms_norm"],
)


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.rms_norm(x, self.weight, 1e-6)
