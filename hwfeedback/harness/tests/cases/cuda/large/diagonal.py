# right: as it stands
# wrong_scales_columns: d[r] * -> d[c] *
# wrong_skips_the_last_partial_block: -(-rows // 24) -> rows // 24
"""A product with a diagonal matrix, as rows that are scaled: 24 rows a block."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, d: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.diag(d).matmul(x)


def get_inputs():
    return [torch.randn(4096), torch.randn(4096, 4096)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void scaled(const float* d, const float* x, float* y, int rows, int n) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, end = min(blockIdx.y * 24 + 24, rows);
    if (c < n)
        for (int r = blockIdx.y * 24; r < end; r++) y[r * n + c] = d[r] * x[r * n + c];
}
""",
)


class ModelNew(nn.Module):
    def forward(self, d: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.scaled[(-(-n // 256), -(-rows // 24)), 256](d, x.contiguous(), y, rows, n)
        return y
