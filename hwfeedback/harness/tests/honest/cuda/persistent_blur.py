"""Five neighbours times constant factors, by a few blocks for each processor of the GPU."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(x, (2, 2))
        n = x.shape[-1]
        out = 0.375 * x
        for shift, factor in ((0, 0.0625), (1, 0.25), (3, 0.25), (4, 0.0625)):
            out = out + factor * padded[:, shift : shift + n]
        return out


def get_inputs():
    return [torch.randn(1024, 10001)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
__constant__ float factors[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

extern "C" __global__ void blur(const float* x, float* y, int rows, int n) {
    long long all = (long long)rows * n;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int i = at % n;
        float sum = 0;
        for (int k = -2; k <= 2; k++)
            if (i + k >= 0 && i + k < n) sum += factors[k + 2] * x[at + k];
        y[at] = sum;
    }
}
""",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.blocks:
            self.blocks = 8 * torch.cuda.get_device_properties(x.device).multi_processor_count
        y = torch.empty_like(x)
        lib.blur[self.blocks, 256](x, y, *x.shape)
        return y
