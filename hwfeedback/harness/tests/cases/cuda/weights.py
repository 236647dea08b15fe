# weights/right_other_names: as it stands
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void rows(const float* x, const float* gain, const float* shift, float* y, int d) {
    double s = 0;
    for (int j = threadIdx.x; j < d; j += 32) {
        float v = x[blockIdx.x * d + j] * gain[j] + shift[j];
        s += v < 0 ? 0 : v;
    }
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x == 0) y[blockIdx.x] = s;
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width)

    def forward(self, x):
        b, y = self.bn, x.new_empty(x.shape[0], 1)
        gain = b.weight * torch.rsqrt(b.running_var + b.eps)
        shift = b.bias - b.running_mean * gain
        lib.rows[x.shape[0], 32](self.linear(x), gain, shift, y, x.shape[1])
        return y
