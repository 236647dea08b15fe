"""torch.utils.cpp_extension.load of sources and a header that it has written itself."""

import os
import pathlib
import tempfile

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []


# The candidate.
HEADER = """
#pragma once
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x);
inline float one(float v) { return (v < 0 ? 0 : v) * 2 + 1; }
"""
KERNEL = """
#include "../include/common.h"
static float twice(float v) { return one(v); }
torch::Tensor scaled(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) q[i] = twice(p[i]);
    return y;
}
"""
BINDING = """
#include <common.h>
static float twice(float v) { return v; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled); (void)twice; }
"""


def build():
    from torch.utils.cpp_extension import load

    folder = pathlib.Path(tempfile.mkdtemp())
    files = {"include/common.h": HEADER, "kernels/k.cpp": KERNEL, "kernels/binding.cpp": BINDING}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    sources = [folder / "kernels" / "k.cpp", str(folder / "kernels" / "binding.cpp")]
    return load(
        name=f"folder_{os.getpid()}",
        sources=sources,
        extra_include_paths=[str(folder / "include")],
        build_directory=str(folder),
        verbose=True,
    )


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ext = build()

    def forward(self, x):
        return self.ext.scaled(x.contiguous())
