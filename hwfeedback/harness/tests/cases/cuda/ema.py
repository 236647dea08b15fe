# state/right_ema: as it stands
# state/wrong_ema_no_state: m[j] = 0.9f * m[j] + 0.1f * -> 0.1f *
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void ema(const float* x, float* m, float* y, int n, int d) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= d) return;
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i * d + j];
    float mean = m[j] = 0.9f * m[j] + 0.1f * (float)(s / n);
    for (int i = 0; i < n; i++) y[i * d + j] = x[i * d + j] - mean;
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        y = torch.empty_like(x)
        n, d = x.shape
        lib.ema[-(-d // 32), 32](x.contiguous(), self.mean, y, n, d)
        return y
