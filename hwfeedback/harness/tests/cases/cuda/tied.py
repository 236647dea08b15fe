# weights/right_tied_kept_twice: as it stands
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
__device__ float all(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
extern "C" __global__ void normalise(const long long* ids, const float* table, const float* w, const float* b, float* y, int d) {
    const float* x = table + ids[blockIdx.x] * d;
    float m = 0, s = 0;
    for (int j = threadIdx.x; j < d; j += 32) m += x[j];
    m = all(m) / d;
    for (int j = threadIdx.x; j < d; j += 32) s += (x[j] - m) * (x[j] - m);
    float r = 1 / sqrtf(all(s) / d + 1e-5f);
    for (int j = threadIdx.x; j < d; j += 32) y[blockIdx.x * d + j] = (x[j] - m) * r * w[j] + b[j];
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        table, norm = self.embed.weight, self.norm
        h = table.new_empty(*ids.shape, table.shape[1])
        given = ids.contiguous(), table, norm.weight, norm.bias
        lib.normalise[ids.numel(), 32](*given, h, table.shape[1])
        return torch.nn.functional.linear(h, self.head.weight)
