# right: as it stands
# wrong_mask_one_off: first + j > query -> first + j > query + 1
# wrong_skips_the_last_tile: first < end; -> first + TILE < end;
"""Causal attention: a block has 64 queries, and skips the tiles of keys that none of them sees."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = q.shape[2]
        later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[3] ** -0.5
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def get_inputs():
    return [torch.randn(2, 4, 1024, 64) for _ in range(3)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { WIDTH = 64, TILE = 32, QUERIES = 64, TEAM = 4, EACH = WIDTH / TEAM };

// A team of four lanes has one query, and each lane every fourth element of it.
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* y, int n, float scale) {
    __shared__ float ks[TILE][WIDTH], vs[TILE][WIDTH], scores[TILE][QUERIES];
    int mine = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
    int head = blockIdx.y * n, query = blockIdx.x * QUERIES + mine;
    int end = min((int)(blockIdx.x * QUERIES + QUERIES), n);
    float in[EACH], out[EACH] = {}, top = -INFINITY, sum = 0;
    for (int d = 0; d < EACH; d++) in[d] = query < n ? q[(head + query) * WIDTH + d * TEAM + lane] * scale : 0;
    for (int first = 0; first < end; first += TILE) {
        for (int i = threadIdx.x; i < TILE * WIDTH; i += QUERIES * TEAM) {
            int j = i / WIDTH, at = (head + first) * WIDTH + i;
            ks[j][i % WIDTH] = first + j < n ? k[at] : 0;
            vs[j][i % WIDTH] = first + j < n ? v[at] : 0;
        }
        __syncthreads();
        float higher = top;
#pragma unroll 2
        for (int j = 0; j < TILE; j++) {
            float s = 0;
            for (int d = 0; d < EACH; d++) s += in[d] * ks[j][d * TEAM + lane];
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
            if (first + j > query) s = -INFINITY;
            if (lane == 0) scores[j][mine] = s;
            higher = fmaxf(higher, s);
        }
        __syncwarp();
        // As long as all scores are -Inf their difference would be NaN.
        float base = higher == -INFINITY ? 0 : higher, keep = expf(top - base), part = 0, o[EACH] = {};
#pragma unroll 2
        for (int j = 0; j < TILE; j++) {
            float e = expf(scores[j][mine] - base);
            part += e;
            for (int d = 0; d < EACH; d++) o[d] += e * vs[j][d * TEAM + lane];
        }
        sum = sum * keep + part;
        for (int d = 0; d < EACH; d++) out[d] = out[d] * keep + o[d];
        top = higher;
        __syncthreads();
    }
    if (query < n)
        for (int d = 0; d < EACH; d++) y[(head + query) * WIDTH + d * TEAM + lane] = out[d] / sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(q)
        b, h, n, width = q.shape
        given = q.contiguous(), k.contiguous(), v.contiguous()
        lib.attend[(-(-n // 64), b * h), 256](*given, y, n, width**-0.5)
        return y
