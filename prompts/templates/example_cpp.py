import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
#include <kw/parallel.h>
#include <kw/reduce.h>
extern "C" void rms_norm(const float* x, const float* weight, float* y, long long rows,
                         long long n, float eps) {
  kw::parallel(rows, [=](long long r) {
    const float* in = x + r * n;
    float* out = y + r * n;
    float square = kw::mean(n, [&](long long i) { return in[i] * in[i]; });
    float scale = 1 / sqrtf(square + eps);
    kw::each(n, [&](long long i) { out[i] = in[i] * scale * weight[i]; });
  });
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
