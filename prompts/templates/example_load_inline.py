import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void rows(const float* x, const float* weight, float* y, int n, float eps) {
  x += (long long)blockIdx.x * n;
  y += (long long)blockIdx.x * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * x[i];
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  __shared__ float part[32];
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < blockDim.x / 32; i++) sum += part[i];
  float scale = 1 / sqrtf(sum / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * scale * weight[i];
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
  auto y = torch::empty_like(x);
  int n = x.size(-1);
  rows<<<x.numel() / n, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), n, eps);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
lib = load_inline(
    name="rms_norm_rows",
    cpp_sources="torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps);",
    cuda_sources=cuda,
    functions=["rms_norm"],
)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return lib.rms_norm(x.contiguous(), self.weight, self.eps)
