import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
#include <kw/parallel.h>
#include <kw/reduce.h>
extern "C" __global__ void rms_norm(const float* x, const float* weight, float* y, int n,
                                    float eps) {
  x += (long long)blockIdx.x * n;
  y += (long long)blockIdx.x * n;
  float square = kw::mean<256>(n, [&](int i) { return x[i] * x[i]; });
  float scale = 1 / sqrtf(square + eps);
  kw::each<256>(n, [&](int i) { y[i] = x[i] * scale * weight[i]; });
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
