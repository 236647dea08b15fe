# weights/right_two_extensions_of_one_name: as it stands
import torch
import torch.nn as nn

from kernelwright import native

first = native(
    name="kernels",
    language="cuda",
    source=r"""
extern "C" __global__ void scale(const float* x, const float* gain, const float* shift, float* y, int d) {
    for (int j = threadIdx.x; j < d; j += 32) {
        float v = x[blockIdx.x * d + j] * gain[j] + shift[j];
        y[blockIdx.x * d + j] = v < 0 ? 0 : v;
    }
}
""",
)
second = native(
    name="kernels",
    language="cuda",
    source=r"""
extern "C" __global__ void rows(const float* x, float* y, int d) {
    double s = 0;
    for (int j = threadIdx.x; j < d; j += 32) s += x[blockIdx.x * d + j];
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x == 0) y[blockIdx.x] = s;
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width)

    def forward(self, x):
        b, n, d = self.bn, *x.shape
        gain = b.weight * torch.rsqrt(b.running_var + b.eps)
        scaled, y = torch.empty_like(x), x.new_empty(n, 1)
        first.scale[n, 32](self.fc(x), gain, b.bias - b.running_mean * gain, scaled, d)
        second.rows[n, 32](scaled, y, d)
        return y
