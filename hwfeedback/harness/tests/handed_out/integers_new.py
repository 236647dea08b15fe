import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void largest(const float* x, long* y, long long rows, long long width) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        long best = 0;
        for (long long j = 1; j < width; j++) {
            float now = x[i * width + j], top = x[i * width + best];
            if (now > top || (now != now && top == top)) best = j;
        }
        y[i] = best;
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64)
        lib.largest(x, y, *x.shape)
        return y
