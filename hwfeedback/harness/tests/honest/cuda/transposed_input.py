"""An input that is transposed in memory, turned round in shared memory and added to another."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y


def get_inputs():
    return [torch.randn(3000, 2050).t(), torch.randn(2050, 3000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
// xt is columns by rows, y and out are rows by columns.
extern "C" __global__ void add(const float* xt, const float* y, float* out, int rows,
                               int columns) {
    __shared__ float tile[32][33];
    int row = blockIdx.y * 32 + threadIdx.x, column = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row < rows && column + i < columns)
            tile[threadIdx.y + i][threadIdx.x] = xt[(long long)(column + i) * rows + row];
    __syncthreads();
    row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    for (int i = 0; i < 32; i += 8) {
        long long at = (long long)(row + i) * columns + column;
        if (row + i >= rows || column >= columns) continue;
        float v = tile[threadIdx.x][threadIdx.y + i];
        out[at] = (v < 0 ? 0.0f : v) + y[at];
    }
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        out = torch.empty_like(y)
        grid = (-(-columns // 32), -(-rows // 32))
        lib.add[grid, (32, 8)](x.t(), y, out, rows, columns)
        return out
