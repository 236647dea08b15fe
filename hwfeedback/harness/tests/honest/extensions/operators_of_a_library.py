"""is_python_module=False: operators that the extension registers."""

import torch
import torch.nn as nn
import torch.utils.cpp_extension


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []


# The candidate.
SOURCE = """
#include <torch/library.h>
torch::Tensor scaled(const torch::Tensor& x) {
    auto y = torch::empty_like(x);
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) q[i] = (p[i] < 0 ? 0 : p[i]) * 2 + 1;
    return y;
}
TORCH_LIBRARY(honest_ops, m) { m.def("scaled(Tensor x) -> Tensor", &scaled); }
"""

torch.utils.cpp_extension.load_inline(
    name="honest_library", cpp_sources=SOURCE, is_python_module=False
)
scaled = torch.ops.honest_ops.scaled


class ModelNew(nn.Module):
    def forward(self, x):
        return scaled(x.contiguous())
