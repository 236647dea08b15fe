"""CUDA where it can be built, C++ else."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []


# The candidate.
SOURCE = r"""
extern "C" void f(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = (x[i] < 0 ? 0 : x[i]) * 2 + 1;
}
"""


CUDA = r"""
extern "C" __global__ void f(const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = (x[i] < 0 ? 0 : x[i]) * 2 + 1;
}
"""


def extension(on_gpu):
    try:
        return native(source=CUDA, language="cuda")
    except Exception:
        if on_gpu:
            raise
        return native(source=SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = None

    def forward(self, x):
        if self.lib is None:
            self.lib = extension(x.is_cuda)
        x = x.contiguous()
        y, n = torch.empty_like(x), x.numel()
        if x.is_cuda:
            self.lib.f[(n + 255) // 256, 256](x, y, n)
        else:
            self.lib.f(x, y, n)
        return y
