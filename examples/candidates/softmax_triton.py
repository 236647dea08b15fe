"""Softmax over the rows, in Triton: a program for each row, which it holds on chip."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=["n"])
@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n
    i = tl.arange(0, BLOCK)
    v = tl.load(x + at + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at + i, e / tl.sum(e, 0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[1]
        rows[(x.shape[0],)](x, y, n, BLOCK=triton.next_power_of_2(n))
        return y
