import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
#include <cmath>
extern "C" void norm(const long long* ids, const float* e, const float* w, const float* b, float* o, long long n, long long d) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) {
        const float* x = e + ids[i] * d;
        float m = 0, s = 0;
        for (long long j = 0; j < d; j++) m += x[j];
        m /= d;
        for (long long j = 0; j < d; j++) s += (x[j] - m) * (x[j] - m);
        float r = 1.f / std::sqrt(s / d + 1e-5f);
        for (long long j = 0; j < d; j++) o[i * d + j] = (x[j] - m) * r * w[j] + b[j];
    }
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
        h = torch.empty(*ids.shape, self.embed.weight.shape[1])
        lib.norm(
            ids.contiguous(),
            self.embed.weight,
            self.norm.weight,
            self.norm.bias,
            h,
            ids.numel(),
            h.shape[-1],
        )
        return torch.nn.functional.linear(h, self.head.weight)
