"""A ring of the last rows, whose position is a buffer and comes round by itself."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(length, width))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ring.index_copy_(0, self.at, x.unsqueeze(0))
        self.at.copy_((self.at + 1) % len(self.ring))
        return self.ring.mean(0) + x


def get_inputs():
    return [torch.randn(1 << 16)]


def get_init_inputs():
    return [40, 1 << 16]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void step(float* ring, const long long* at, const float* x, float* y,
                                int length, int n) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    ring[*at * n + j] = x[j];
    float sum = 0;
    for (int i = 0; i < length; i++) sum += ring[(long long)i * n + j];
    y[j] = sum / length + x[j];
}

extern "C" __global__ void advance(long long* at, int length) {
    *at = *at + 1 == length ? 0 : *at + 1;
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(length, width))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        length, n = self.ring.shape
        lib.step[(n + 255) // 256, 256](self.ring, self.at, x, y, length, n)
        lib.advance[1, 1](self.at, length)
        return y
