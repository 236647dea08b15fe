"""Layer norm in Triton: a program holds its row, and sums the squares of what is left of it."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(4096, 3000)]


def get_init_inputs():
    return [3000]


# The candidate.


@triton.jit
def rows(x, weight, bias, y, n, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n
    i = tl.arange(0, BLOCK)
    v = tl.load(x + at + i, mask=i < n, other=0.0)
    mean = tl.sum(v, 0) / n
    d = tl.where(i < n, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    w = tl.load(weight + i, mask=i < n)
    b = tl.load(bias + i, mask=i < n)
    tl.store(y + at + i, d * scale * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        count, n = x.shape
        block = triton.next_power_of_2(n)
        weight, bias = self.norm.weight, self.norm.bias
        rows[(count,)](x, weight, bias, y, n, self.norm.eps, BLOCK=block, num_warps=8)
        return y
