"""The Python of docs/your-package.md does what the page says, with a file as it is handed out."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

from kwharness.export import inline_loader

ROOT = pathlib.Path(__file__).parents[3]
PAGE = ROOT / "docs" / "your-package.md"
CANDIDATE = '''import torch
import torch.nn as nn
from kernelwright import native

lib = native(source=r"""
#include <cmath>
extern "C" void rms(const float* x, const float* w, float* y, long long rows, long long width,
                    double eps) {
    for (long long r = 0; r < rows; r++) {
        const float* in = x + r * width;
        double sum = 0;
        for (long long i = 0; i < width; i++) sum += double(in[i]) * in[i];
        const float scale = float(1 / std::sqrt(sum / width + eps));
        for (long long i = 0; i < width; i++) y[r * width + i] = in[i] * scale * w[i];
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.3 * torch.randn(width))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        lib.rms(x, self.weight, y, x.numel() // x.shape[-1], x.shape[-1], self.eps)
        return y
'''


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_page_about_packages(tmp_path):
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "examples" / "rms_norm.py", package)
    (package / "rms_norm_best.py").write_text(inline_loader.standalone(CANDIDATE))
    found = blocks("python")
    assert len(found) >= 5
    cache = tmp_path / "extensions"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TORCH_EXTENSIONS_DIR": str(cache),
    }
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(found)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [p.suffix for p in (cache / "kernelwright").iterdir()] == [".so"]
