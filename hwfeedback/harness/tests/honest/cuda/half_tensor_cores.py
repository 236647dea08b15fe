"""Batched products in half precision on the tensor cores, from tiles in shared memory."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(8, 512, 512).half(), torch.randn(8, 512, 512).half()]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// 64 by 64 outputs of a block, 32 by 32 of each of its four warps; 32 of the depth at a time.
extern "C" __global__ void product(const half* a, const half* b, half* c, int rows, int columns,
                                   int depth) {
    __shared__ __align__(32) half left[64][32 + 8], right[32][64 + 8];
    __shared__ __align__(32) float out[64][64];
    long long batch = blockIdx.z;
    a += (batch * rows + blockIdx.y * 64) * depth;
    b += batch * depth * columns + blockIdx.x * 64;
    c += (batch * rows + blockIdx.y * 64) * columns + blockIdx.x * 64;
    int warp = threadIdx.x / 32, i0 = warp / 2 * 32, j0 = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) wmma::fill_fragment(sum[i][j], 0.0f);
    for (int k0 = 0; k0 < depth; k0 += 32) {
        for (int t = threadIdx.x; t < 64 * 32; t += blockDim.x) {
            left[t / 32][t % 32] = a[(long long)(t / 32) * depth + k0 + t % 32];
            right[t / 64][t % 64] = b[(long long)(k0 + t / 64) * columns + t % 64];
        }
        __syncthreads();
        for (int k = 0; k < 32; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> u[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> v[2];
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(u[i], &left[i0 + 16 * i][k], 32 + 8);
                wmma::load_matrix_sync(v[i], &right[k][j0 + 16 * i], 64 + 8);
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) wmma::mma_sync(sum[i][j], u[i], v[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(&out[i0 + 16 * i][j0 + 16 * j], sum[i][j], 64,
                                    wmma::mem_row_major);
    __syncthreads();
    for (int t = threadIdx.x; t < 64 * 64; t += blockDim.x)
        c[(long long)(t / 64) * columns + t % 64] = __float2half(out[t / 64][t % 64]);
}
""",
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        batch, rows, depth = a.shape
        columns = b.shape[2]
        if rows % 64 or columns % 64 or depth % 32:
            raise ValueError("its tiles are 64 by 64 by 32")
        c = a.new_empty(batch, rows, columns)
        lib.product[(columns // 64, rows // 64, batch), 128](a, b, c, rows, columns, depth)
        return c
