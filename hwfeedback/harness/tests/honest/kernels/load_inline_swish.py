"""SiLU and a residual, bound by load_inline to tensors of torch's own."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) + y


def get_inputs():
    return [torch.randn(40, 300), torch.randn(40, 300)]


def get_init_inputs():
    return []


# The candidate.

module = load_inline(
    name="swish",
    cpp_sources=r"""
#include <torch/extension.h>
#include <math.h>

torch::Tensor swish(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    const float *a = x.data_ptr<float>(), *b = y.data_ptr<float>();
    float* o = out.data_ptr<float>();
    for (long long i = 0; i < x.numel(); i++) o[i] = a[i] / (1.0f + expf(-a[i])) + b[i];
    return out;
}
""",
    functions=["swish"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return module.swish(x, y)
