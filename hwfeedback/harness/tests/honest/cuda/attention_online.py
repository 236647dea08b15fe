"""Attention without a matrix of scores: a thread for each query, keys and values by tiles."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v


def get_inputs():
    return [torch.randn(2, 8, 1000, 32) * scale for scale in (0.2, 0.2, 1)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { WIDTH = 32, TILE = 32, THREADS = 64 };

extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* y,
                                     int queries, int keys, float scale) {
    __shared__ float ks[TILE][WIDTH], vs[TILE][WIDTH];
    long long head = blockIdx.y;
    int query = blockIdx.x * THREADS + threadIdx.x;
    bool mine = query < queries;
    float in[WIDTH], out[WIDTH], score[TILE];
#pragma unroll
    for (int d = 0; d < WIDTH; d++) {
        in[d] = mine ? q[(head * queries + query) * WIDTH + d] * scale : 0.0f;
        out[d] = 0;
    }
    float top = -INFINITY, sum = 0;
    for (int first = 0; first < keys; first += TILE) {
        int n = min((int)TILE, keys - first);
        for (int i = threadIdx.x; i < n * WIDTH; i += THREADS) {
            long long at = (head * keys + first) * WIDTH + i;
            ks[i / WIDTH][i % WIDTH] = k[at];
            vs[i / WIDTH][i % WIDTH] = v[at];
        }
        __syncthreads();
        float higher = top;
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            score[j] = -INFINITY;
            if (j < n) {
                float s[4] = {};
#pragma unroll
                for (int d = 0; d < WIDTH; d++) s[d % 4] += in[d] * ks[j][d];
                score[j] = (s[0] + s[1]) + (s[2] + s[3]);
            }
            higher = fmaxf(higher, score[j]);
        }
        // As long as all scores are -Inf their difference would be NaN.
        float base = higher == -INFINITY ? 0.0f : higher;
        float keep = expf(top - base), part = 0;
#pragma unroll
        for (int j = 0; j < TILE; j++) part += score[j] = expf(score[j] - base);
        sum = sum * keep + part;
#pragma unroll
        for (int d = 0; d < WIDTH; d++) {
            float o = 0;
#pragma unroll
            for (int j = 0; j < TILE; j++)
                if (j < n) o += score[j] * vs[j][d];
            out[d] = out[d] * keep + o;
        }
        top = higher;
        __syncthreads();
    }
    if (mine)
#pragma unroll
        for (int d = 0; d < WIDTH; d++) y[(head * queries + query) * WIDTH + d] = out[d] / sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(q)
        batch, heads, queries, width = q.shape
        grid = (-(-queries // 64), batch * heads)
        lib.attention[grid, 64](q, k, v, y, queries, k.shape[2], width**-0.5)
        return y
