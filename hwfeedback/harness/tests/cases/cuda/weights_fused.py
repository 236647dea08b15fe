# weights/right_fused_at_construction: as it stands
# weights/wrong_fused_without_statistics: bn.bias - bn.running_mean * self.gain -> torch.zeros(width)
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
        self.fc = nn.Linear(width, width)
        bn = nn.BatchNorm1d(width)
        self.gain = nn.Parameter(bn.weight * torch.rsqrt(bn.running_var + bn.eps))
        self.shift = nn.Parameter(bn.bias - bn.running_mean * self.gain)

    def forward(self, x):
        y = x.new_empty(x.shape[0], 1)
        lib.rows[x.shape[0], 32](self.fc(x), self.gain, self.shift, y, x.shape[1])
        return y
