import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
#include <math.h>
enum { LANES = 16 };

extern "C" void rms_norm(const float* x, const float* weight, float* y, long long rows,
                         long long n, float eps) {
#pragma omp parallel for
  for (long long r = 0; r < rows; r++) {
    const float* in = x + r * n;
    float* out = y + r * n;
    float part[LANES] = {0};  // a sum for each lane: the compiler reorders no float sums
    long long j = 0;
    for (; j + LANES <= n; j += LANES)
      for (int k = 0; k < LANES; k++) part[k] += in[j + k] * in[j + k];
    for (; j < n; j++) part[0] += in[j] * in[j];
    float sum = 0;
    for (int k = 0; k < LANES; k++) sum += part[k];
    float scale = 1 / sqrtf(sum / n + eps);
    for (j = 0; j < n; j++) out[j] = in[j] * scale * weight[j];
  }
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
        lib.rms_norm(x, self.weight, y, x.numel() // n, n, self.eps)
        return y
