"""An output that is a view with strides of its own, over memory that is kept between calls."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(x).transpose(1, 2)


def get_inputs():
    return [torch.randn(12, 800, 900) * 3]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void softplus(const float* x, float* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 20 ? x[i] : log1pf(expf(x[i]));
}
""",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = torch.empty_like(x)
        n = x.numel()
        lib.softplus[(n + 255) // 256, 256](x, self.kept, n)
        return self.kept.transpose(1, 2)
