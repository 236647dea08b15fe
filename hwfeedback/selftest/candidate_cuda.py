import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
__global__ void each(const float* x, float* y, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0.0f || x[i] != x[i] ? x[i] : 0.0f;
}
extern "C" void relu(const float* x, float* y, long long n, cudaStream_t stream) {
  each<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.relu(x, y, x.numel())
        return y
