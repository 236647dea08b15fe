# told: a is symmetric, b is symmetric
# right: as it stands
# wrong_reads_a_triangle_of_one_factor: lower(a, r, c, n) -> (r < c ? 0 : a[r * n + c])
# wrong_takes_the_product_for_symmetric: int row = blockIdx.y * TILE, column = blockIdx.x * TILE; -> int row = max(blockIdx.y, blockIdx.x) * TILE, column = min(blockIdx.y, blockIdx.x) * TILE;
# wrong_takes_the_product_for_symmetric: y[r * n + c] -> y[blockIdx.y < blockIdx.x ? c * n + r : r * n + c]
"""A product of two symmetric matrices, of which only the lower triangles are read."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    drawn = [torch.randn(2048, 2048) for _ in range(2)]
    return [(x + x.T) / 2 for x in drawn]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { TILE = 64, DEPTH = 16 };

__device__ float lower(const float* m, int r, int c, int n) { return m[max(r, c) * n + min(r, c)]; }

// Of a tile of results a thread has 4 x 4. Each 64 terms are summed by themselves: long sums err more.
extern "C" __global__ void product(const float* a, const float* b, float* y, int n) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE];
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int up = threadIdx.x / 16 * 4, left = threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    for (int first = 0; first < n; first += TILE) {
        float part[4][4] = {};
        for (int k = first; k < first + TILE; k += DEPTH) {
            for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
                int r = row + i / DEPTH, c = k + i % DEPTH;
                as[i % DEPTH][i / DEPTH] = r < n && c < n ? lower(a, r, c, n) : 0;
                r = k + i / TILE, c = column + i % TILE;
                bs[i / TILE][i % TILE] = r < n && c < n ? lower(b, r, c, n) : 0;
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
            if (r < n && c < n) y[r * n + c] = sum[i][j];
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
