"""A chain of elementwise operators, with factors of each channel, as one Triton kernel."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.shift = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(x * self.scale + self.shift)
        return nn.functional.leaky_relu(y + r, 0.1) * 0.5


def get_inputs():
    return [torch.randn(16, 96, 72, 72), torch.randn(16, 96, 72, 72)]


def get_init_inputs():
    return [96]


# The candidate.


@triton.jit
def chain(x, r, scale, shift, y, pixels, channels, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = plane.to(tl.int64) * pixels + i
    c = plane % channels
    v = tl.load(x + at, mask=i < pixels) * tl.load(scale + c) + tl.load(shift + c)
    v = v * tl.minimum(tl.maximum(v + 3.0, 0.0), 6.0) / 6.0
    v += tl.load(r + at, mask=i < pixels)
    tl.store(y + at, tl.where(v < 0, v * 0.1, v) * 0.5, mask=i < pixels)


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        pixels = height * width
        grid = (images * channels, triton.cdiv(pixels, 1024))
        chain[grid](x, r, self.scale, self.shift, y, pixels, channels, BLOCK=1024)
        return y
