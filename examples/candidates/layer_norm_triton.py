"""Layer norm over the last dimension, in Triton: a program for each row, which it holds on chip."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x, weight, bias, y, n, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n
    i = tl.arange(0, BLOCK)
    v = tl.load(x + at + i, mask=i < n, other=0.0)
    # What is left of the mean is squared: a difference of two large sums would lose it.
    d = tl.where(i < n, v - tl.sum(v, 0) / n, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    w = tl.load(weight + i, mask=i < n)
    b = tl.load(bias + i, mask=i < n)
    tl.store(y + at + i, d * scale * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[-1]
        weight, bias = self.norm.weight, self.norm.bias
        block = triton.next_power_of_2(n)
        rows[(x.numel() // n,)](x, weight, bias, y, n, self.norm.eps, BLOCK=block, num_warps=4)
        return y
