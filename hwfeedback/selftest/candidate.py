import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
extern "C" void relu(const float* x, float* y, long long n) {
  for (long long i = 0; i < n; ++i) y[i] = x[i] > 0.0f || x[i] != x[i] ? x[i] : 0.0f;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.relu(x, y, x.numel())
        return y
