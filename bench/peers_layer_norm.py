"""The same kernels as in throughput_layer_norm.py, by load_inline: peers can judge it, too."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ double2 warp_sum(double2 v) {
  for (int o = 16; o; o >>= 1) {
    v.x += __shfl_xor_sync(~0u, v.x, o);
    v.y += __shfl_xor_sync(~0u, v.y, o);
  }
  return v;
}

__global__ void stats(const float* x, double* part, int n) {
  int slice = n / gridDim.x;
  x += (long long)blockIdx.y * n + (long long)blockIdx.x * slice;
  double2 v = make_double2(0, 0);
  for (int i = threadIdx.x; i < slice; i += blockDim.x) {
    double a = x[i];
    v.x += a;
    v.y += a * a;
  }
  v = warp_sum(v);
  __shared__ double2 warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < blockDim.x / 32; i++) {
      v.x += warps[i].x;
      v.y += warps[i].y;
    }
    double* out = part + 2 * (blockIdx.y * gridDim.x + blockIdx.x);
    out[0] = v.x;
    out[1] = v.y;
  }
}

__global__ void scale(const float* x, const float* w, const float* b, float* y,
                                 const double* part, int n, float eps) {
  __shared__ float mean, rstd;
  if (threadIdx.x < 32) {
    double2 v = make_double2(0, 0);
    for (int i = threadIdx.x; i < gridDim.x; i += 32) {
      const double* one = part + 2 * (blockIdx.y * gridDim.x + i);
      v.x += one[0];
      v.y += one[1];
    }
    v = warp_sum(v);
    if (threadIdx.x == 0) {
      double m = v.x / n;
      mean = (float)m;
      rstd = (float)(1 / sqrt(v.y / n - m * m + eps));
    }
  }
  __syncthreads();
  int slice = n / gridDim.x;
  long long at = (long long)blockIdx.x * slice;
  x += (long long)blockIdx.y * n + at;
  y += (long long)blockIdx.y * n + at;
  for (int i = threadIdx.x; i < slice; i += blockDim.x)
    y[i] = (x[i] - mean) * rstd * w[at + i] + b[at + i];
}

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be contiguous, on a GPU");
  const int blocks = 128;
  int n = w.numel(), rows = x.numel() / n;
  auto y = torch::empty_like(x);
  auto part = torch::empty({rows, blocks, 2}, x.options().dtype(torch::kFloat64));
  auto stream = at::cuda::getCurrentCUDAStream();
  stats<<<dim3(blocks, rows), 256, 0, stream>>>(x.data_ptr<float>(), part.data_ptr<double>(), n);
  scale<<<dim3(blocks, rows), 256, 0, stream>>>(
      x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
      part.data_ptr<double>(), n, (float)eps);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
lib = load_inline(
    name="layer_norm_inline",
    cpp_sources=(
        "torch::Tensor layer_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps);"
    ),
    cuda_sources=cuda,
    functions=["layer_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x):
        return lib.layer_norm(x.contiguous(), self.ln.weight, self.ln.bias, self.ln.eps)
