# order/right: as it stands
# order/wrong_six_a_part: KEEP = 8 -> KEEP = 6
import torch
import torch.nn as nn

from kernelwright import native

# A thread for each sixteenth of a row, and one that joins what these keep.
lib = native(
    language="cuda",
    source=r"""
enum { PARTS = 16, KEEP = 8, MOST = 8 };

__device__ bool above(float a, float b) { return (a != a && b == b) || a > b; }

// Puts one among the largest so far, in order; returns how many there are.
__device__ int put(float* v, int* at, int have, int most, float x, int i) {
    if (have == most && !above(x, v[most - 1])) return have;
    int j = have < most ? have++ : most - 1;
    for (; j > 0 && above(x, v[j - 1]); j--) v[j] = v[j - 1], at[j] = at[j - 1];
    v[j] = x, at[j] = i;
    return have;
}

extern "C" __global__ void topk(const float* x, float* v, long long* at, int n, int k) {
    __shared__ float kept[PARTS][KEEP];
    __shared__ int where[PARTS][KEEP], count[PARTS];
    x += blockIdx.x * n, v += blockIdx.x * k, at += blockIdx.x * k;
    float bv[MOST];
    int bi[MOST], have = 0, p = threadIdx.x, size = (n + PARTS - 1) / PARTS;
    for (int i = p * size; i < min(p * size + size, n); i++) have = put(bv, bi, have, KEEP, x[i], i);
    for (int c = 0; c < have; c++) kept[p][c] = bv[c], where[p][c] = bi[c];
    count[p] = have;
    __syncthreads();
    if (p) return;
    have = 0;
    for (int o = 0; o < PARTS; o++)
        for (int c = 0; c < count[o]; c++) have = put(bv, bi, have, k, kept[o][c], where[o][c]);
    for (int j = 0; j < k; j++) v[j] = bv[j], at[j] = bi[j];
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        rows, n = x.shape
        v = x.new_empty(rows, self.k)
        at = torch.empty_like(v, dtype=torch.int64)
        lib.topk[rows, 16](x.contiguous(), v, at, n, self.k)
        return v, at
