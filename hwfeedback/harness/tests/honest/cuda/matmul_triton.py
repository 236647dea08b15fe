"""A product and ReLU in Triton: tl.dot in float32 proper, autotuned over three tilings."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, m) / n**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight)


def get_inputs():
    return [torch.randn(1000, 800)]


def get_init_inputs():
    return [800, 1200]


# The candidate.


@triton.autotune(
    [
        triton.Config({"M": 32, "N": 32, "K": 32}, num_warps=4),
        triton.Config({"M": 64, "N": 32, "K": 32}, num_warps=4),
        triton.Config({"M": 64, "N": 64, "K": 16}, num_warps=8),
    ],
    key=["rows", "columns", "depth"],
)
@triton.jit
def product(x, w, y, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = (tl.program_id(0) * M + tl.arange(0, M))[:, None]
    column = (tl.program_id(1) * N + tl.arange(0, N))[None, :]
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, depth, K):
        k = first + tl.arange(0, K)
        a = tl.load(
            x + row * depth + k[None, :], mask=(row < rows) & (k[None, :] < depth), other=0.0
        )
        b = tl.load(
            w + k[:, None] * columns + column,
            mask=(k[:, None] < depth) & (column < columns),
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")
    out = tl.where(total < 0, 0.0, total)
    tl.store(y + row * columns + column, out, mask=(row < rows) & (column < columns))


def tiles(meta):
    return (triton.cdiv(meta["rows"], meta["M"]), triton.cdiv(meta["columns"], meta["N"]))


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, m))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, depth = x.shape
        columns = self.weight.shape[1]
        y = x.new_empty(rows, columns)
        product[tiles](x, self.weight, y, rows, columns, depth)
        return y
