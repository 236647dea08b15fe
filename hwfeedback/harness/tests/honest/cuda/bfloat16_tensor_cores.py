"""A product in bfloat16 on the tensor cores, summed in float32; ReLU before it is rounded."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight = nn.Parameter((torch.randn(n, m) / n**0.5).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight)


def get_inputs():
    return [torch.randn(2048, 1024).to(torch.bfloat16)]


def get_init_inputs():
    return [1024, 1024]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

// 64 by 64 outputs of a block, 32 by 32 of each of its four warps.
__global__ void product(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y,
                        int columns, int depth) {
    __shared__ __align__(32) float out[64][64];
    int warp = threadIdx.x / 32, down = warp / 2 * 32, right = warp % 2 * 32;
    long long row = blockIdx.y * 64 + down, column = blockIdx.x * 64 + right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int k = 0; k < depth; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[2];
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> b[2];
        for (int i = 0; i < 2; i++) {
            wmma::load_matrix_sync(a[i], x + (row + 16 * i) * depth + k, depth);
            wmma::load_matrix_sync(b[i], w + (long long)k * columns + column + 16 * i, columns);
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(&out[down + 16 * i][right + 16 * j], sum[i][j], 64,
                                    wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
        float v = out[i / 64][i % 64];
        long long at = (blockIdx.y * 64ll + i / 64) * columns + blockIdx.x * 64 + i % 64;
        y[at] = __float2bfloat16(v < 0 ? 0.0f : v);
    }
}

extern "C" void run(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int rows,
                    int columns, int depth, cudaStream_t stream) {
    product<<<dim3(columns / 64, rows / 64), 128, 0, stream>>>(x, w, y, columns, depth);
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, m, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, depth = x.shape
        columns = self.weight.shape[1]
        if rows % 64 or columns % 64 or depth % 16:
            raise ValueError("its tiles are 64 by 64 by 16")
        y = x.new_empty(rows, columns)
        lib.run(x, self.weight, y, rows, columns, depth)
        return y
