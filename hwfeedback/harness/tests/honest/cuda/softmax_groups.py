"""Softmax by cooperative groups: a block, its warps as tiles, and their reductions."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(8192, 1024)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

extern "C" __global__ void softmax(const float* x, float* y, int n) {
    __shared__ float highest[8], sums[8];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const float* in = x + (long long)blockIdx.x * n;
    float* out = y + (long long)blockIdx.x * n;

    float top = -INFINITY;
    for (int i = block.thread_rank(); i < n; i += block.size()) top = fmaxf(top, in[i]);
    top = cg::reduce(warp, top, cg::greater<float>());
    if (warp.thread_rank() == 0) highest[warp.meta_group_rank()] = top;
    block.sync();
    for (int w = 0; w < warp.meta_group_size(); w++) top = fmaxf(top, highest[w]);

    float sum = 0;
    for (int i = block.thread_rank(); i < n; i += block.size()) sum += expf(in[i] - top);
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = sum;
    block.sync();
    sum = 0;
    for (int w = 0; w < warp.meta_group_size(); w++) sum += sums[w];

    for (int i = block.thread_rank(); i < n; i += block.size()) out[i] = expf(in[i] - top) / sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.softmax[rows, 256](x, y, n)
        return y
