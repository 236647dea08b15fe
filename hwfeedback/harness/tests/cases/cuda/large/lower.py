# told: a is lower triangular, b is lower triangular
# right: as it stands
# wrong_forgets_the_diagonal_tile: first < min(row + TILE, n) -> first < min(row, n)
# wrong_begins_a_tile_late: int first = column; -> int first = column + TILE;
"""A lower triangular product: a block skips the tiles in which a factor has only zeros."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).tril()


def get_inputs():
    return [torch.randn(2048, 2048).tril() for _ in range(2)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { TILE = 64, DEPTH = 16 };

// Of a tile of results a thread has 4 x 4. Each 64 terms are summed by themselves: long sums err more.
extern "C" __global__ void product(const float* a, const float* b, float* y, int n) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE];
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int up = threadIdx.x / 16 * 4, left = threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    for (int first = column; first < min(row + TILE, n); first += TILE) {
        float part[4][4] = {};
        for (int k = first; k < first + TILE; k += DEPTH) {
            for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
                int r = row + i / DEPTH, c = k + i % DEPTH;
                as[i % DEPTH][i / DEPTH] = r < n && c < n ? a[r * n + c] : 0;
                r = k + i / TILE, c = column + i % TILE;
                bs[i / TILE][i % TILE] = r < n && c < n ? b[r * n + c] : 0;
            }
            __syncthreads();
            for (int d = 0; d < DEPTH; d++)
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++) part[i][j] += as[d][up + i] * bs[d][left + j];
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) sum[i][j] += part[i][j];
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int r = row + up + i, c = column + left + j;
            if (r < n && c < n) y[r * n + c] = r < c ? 0 : sum[i][j];
        }
}
""",
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y, n = torch.empty_like(a), a.shape[0]
        tiles = -(-n // 64)
        lib.product[(tiles, tiles), 256](a.contiguous(), b.contiguous(), y, n)
        return y
