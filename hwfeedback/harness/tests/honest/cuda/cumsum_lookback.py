"""Cumulative sums in a single pass: a tile looks back at what those before it have published."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)


def get_inputs():
    return [torch.randn(96, 50000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { THREADS = 256, EACH = 8, TILE = THREADS * EACH };
// A tile's state is one word: above, what it knows of itself; below, a sum as bits.
enum : unsigned { NOTHING = 0, OWN = 1, ALL = 2 };

__device__ void publish(unsigned long long* state, unsigned what, float sum) {
    atomicExch(state, (unsigned long long)what << 32 | __float_as_uint(sum));
}

__global__ void __launch_bounds__(THREADS) scan(const float* x, float* y,
                                                unsigned long long* states, unsigned* tickets,
                                                int n) {
    __shared__ float sums[THREADS / 32], before;
    __shared__ unsigned ticket;
    int row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // In the order in which blocks start: those before this one run, or have run.
    if (threadIdx.x == 0) ticket = atomicAdd(tickets + row, 1u);
    __syncthreads();
    int tile = ticket, first = tile * TILE + threadIdx.x * EACH;
    x += (long long)row * n;
    y += (long long)row * n;
    states += (long long)row * gridDim.x;

    float running[EACH], sum = 0;
    for (int i = 0; i < EACH; i++) {
        if (first + i < n) sum += x[first + i];
        running[i] = sum;
    }
    float upto = sum;  // this thread, from the first of its warp on
    for (int o = 1; o < 32; o *= 2) {
        float u = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += u;
    }
    float offset = __shfl_up_sync(~0u, upto, 1);
    if (lane == 0) offset = 0;
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    float warps = 0;
    for (int w = 0; w < warp; w++) warps += sums[w];

    if (threadIdx.x == 0) {
        float own = 0, found = 0;
        for (int w = 0; w < THREADS / 32; w++) own += sums[w];
        if (tile > 0) {
            publish(states + tile, OWN, own);
            unsigned what = OWN;
            for (int t = tile - 1; what != ALL; t--) {
                unsigned long long state;
                do {
                    state = *(volatile unsigned long long*)(states + t);
                    what = state >> 32;
                } while (what == NOTHING);
                found += __uint_as_float((unsigned)state);
            }
        }
        publish(states + tile, ALL, found + own);
        before = found;
    }
    __syncthreads();
    offset += before + warps;
    for (int i = 0; i < EACH; i++)
        if (first + i < n) y[first + i] = offset + running[i];
}

extern "C" int tiles(int n) { return (n + TILE - 1) / TILE; }

extern "C" void cumsum(const float* x, float* y, unsigned long long* states, unsigned* tickets,
                       int rows, int n, cudaStream_t stream) {
    int count = tiles(n);
    cudaMemsetAsync(states, 0, sizeof(*states) * rows * count, stream);
    cudaMemsetAsync(tickets, 0, sizeof(*tickets) * rows, stream);
    scan<<<dim3(count, rows), THREADS, 0, stream>>>(x, y, states, tickets, n);
}
""",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.shape = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        if self.shape != x.shape:
            self.shape = x.shape
            self.states = x.new_empty(rows, lib.tiles(n), dtype=torch.int64)
            self.tickets = x.new_empty(rows, dtype=torch.int32)
        y = torch.empty_like(x)
        lib.cumsum(x, y, self.states, self.tickets, rows, n)
        return y
