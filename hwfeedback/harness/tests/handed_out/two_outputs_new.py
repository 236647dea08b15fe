import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void parted(const float* x, float* above, float* below, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) {
        above[i] = x[i] < 0 ? 0 : x[i];
        below[i] = x[i] > 0 ? 0 : x[i];
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        above, below = torch.empty_like(x), torch.empty_like(x)
        lib.parted(x, above, below, x.numel())
        return above, below
