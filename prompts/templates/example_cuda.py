import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void rms_norm(const float* x, const float* weight, float* y, int n,
                                    float eps) {
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
""",
)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        lib.rms_norm[x.numel() // n, 256](x, self.weight, y, n, self.eps)
        return y
