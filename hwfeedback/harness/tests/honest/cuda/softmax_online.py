"""Online softmax of large logits: a warp for each row, whose lanes merge maxima and sums."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(16384, 700) * 30]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
// Adds the sum of exponentials s2 over m2 to s over m. Of two -Inf the difference is NaN.
__device__ void merge(float& m, float& s, float m2, float s2) {
    float top = fmaxf(m, m2);
    if (top == -INFINITY) {
        s += s2;
        return;
    }
    s = s * expf(m - top) + s2 * expf(m2 - top);
    m = top;
}

extern "C" __global__ void softmax(const float* x, float* y, int rows, int n) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* in = x + (long long)row * n;
    float* out = y + (long long)row * n;
    float top = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) {
        float v = in[i];
        if (v == -INFINITY) continue;
        if (v > top) {
            sum = sum * expf(top - v) + 1.0f;
            top = v;
        } else {
            sum += expf(v - top);
        }
    }
    for (int o = 16; o; o >>= 1) {
        float m2 = __shfl_xor_sync(~0u, top, o), s2 = __shfl_xor_sync(~0u, sum, o);
        merge(top, sum, m2, s2);
    }
    for (int i = lane; i < n; i += 32) out[i] = expf(in[i] - top) / sum;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.softmax[(rows + 7) // 8, 256](x, y, rows, n)
        return y
