"""Swish and a residual by load_inline, on tensors of torch's own and on its current stream."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) + r


def get_inputs():
    return [torch.randn(4096, 2048), torch.randn(4096, 2048)]


def get_init_inputs():
    return []


# The candidate.

module = load_inline(
    name="swish_residual",
    cpp_sources="torch::Tensor swish(torch::Tensor x, torch::Tensor r);",
    cuda_sources=r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void each(const float* x, const float* r, float* y, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] / (1.0f + expf(-x[i])) + r[i];
}

torch::Tensor swish(torch::Tensor x, torch::Tensor r) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && r.is_contiguous(), "on a GPU, and contiguous");
    auto y = torch::empty_like(x);
    int64_t n = x.numel();
    each<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), r.data_ptr<float>(), y.data_ptr<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
""",
    functions=["swish"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return module.swish(x, r)
