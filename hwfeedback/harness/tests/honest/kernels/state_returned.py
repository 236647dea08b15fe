"""What comes back is the state itself, a count by class that goes on from call to call."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))

    def forward(self, labels: torch.Tensor, x: torch.Tensor):
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        return self.counts, x / (1 + self.counts[labels])


def get_inputs():
    return [torch.randint(0, 12, (512,)), torch.randn(512)]


def get_init_inputs():
    return [12]


# The candidate.

lib = native(
    source=r"""
extern "C" void count(const long long* labels, const float* x, long long* counts, float* y,
                      long long n) {
    for (long long i = 0; i < n; i++) counts[labels[i]]++;
    for (long long i = 0; i < n; i++) y[i] = x[i] / (1 + counts[labels[i]]);
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))

    def forward(self, labels: torch.Tensor, x: torch.Tensor):
        y = torch.empty_like(x)
        lib.count(labels.contiguous(), x.contiguous(), self.counts, y, len(x))
        return self.counts, y
