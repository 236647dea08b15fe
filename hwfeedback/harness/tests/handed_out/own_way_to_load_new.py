import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void scale(const float* x, const float* s, float* y, long long rows, long long width) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long j = 0; j < width; j++) y[i * width + j] = x[i * width + j] * s[j] * 2;
}
"""
)


class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.halves = torch.nn.Parameter(torch.empty(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, self.halves, y, *x.shape)
        return y

    def load_reference_state(self, state):
        self.halves.copy_(state["scale"] / 2)
