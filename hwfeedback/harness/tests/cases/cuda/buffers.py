# buffers/right: as it stands
# buffers/zeros_baked_in: self.baked = None -> self.baked = zeros_of(k, n)
# buffers/zeros_baked_in: self.scales, self.zeros -> self.scales, self.baked
import torch
import torch.nn as nn

from kernelwright import native

GROUP = 96

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void mul(const float* x, const unsigned char* c, const float* s, const float* z, float* y, int k, int n, int group) {
    int r = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    float sum = 0;
    for (int i = 0; i < k; i++) {
        int two = c[i / 2 * n + j], at = i / group * n + j;
        sum += x[r * k + i] * (((i & 1 ? two >> 4 : two & 15) - z[at]) * s[at]);
    }
    y[r * n + j] = sum;
}
""",
)


def zeros_of(k, n):
    """Draws the reference's weights, and returns the zeros of their groups."""
    torch.manual_seed(7)
    found = []
    for part in (torch.randn(k, n) * 0.02).split(GROUP):
        low, high = part.min(0).values, part.max(0).values
        found.append((-low / ((high - low).clamp_min(1e-8) / 15)).round().clamp(0, 15))
    return torch.stack(found)


class ModelNew(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        groups = -(-k // GROUP)
        self.register_buffer("codes", torch.zeros(k // 2, n, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(groups, n))
        self.register_buffer("zeros", torch.zeros(groups, n))
        self.baked = None

    def forward(self, x):
        (m, k), n = x.shape, self.codes.shape[1]
        y = x.new_empty(m, n)
        given = x.contiguous(), self.codes, self.scales, self.zeros
        lib.mul[(-(-n // 64), m), 64](*given, y, k, n, GROUP)
        return y
