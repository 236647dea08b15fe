"""Prints how long the convolutions of references take in float64 on a GPU: by cuDNN, and by
PyTorch itself, which the referee has transposed ones done by.

The folder of references is given by path: KernelBench's level 1, say. Their code is run in this
process.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

CONVOLUTIONS = ("nn.Conv", "F.conv")


def timed(call: Callable[[], Any]) -> tuple[float, torch.Tensor]:
    """Returns milliseconds of the faster of two calls, and what it gave."""
    took = []
    for _ in range(2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        out = call()
        torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - begun))
    return min(took), out


def row(path: pathlib.Path) -> tuple[str, float, float]:
    """Returns a line of the table, and milliseconds in float64 with cuDNN and without."""
    made: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), made)
    model = made["Model"](*made["get_init_inputs"]())
    inputs = [t.cuda() for t in made["get_inputs"]()]
    eager, _ = timed(lambda: model(*inputs))
    model, inputs = model.double(), [t.double() for t in inputs]
    asked, a = timed(lambda: model(*inputs))
    torch.backends.cudnn.enabled = False
    own, b = timed(lambda: model(*inputs))
    torch.backends.cudnn.enabled = True
    off = float((a - b).abs().max() / a.abs().max())
    return f"| {path.stem} | {eager:.1f} | {asked:.1f} | {own:.1f} | {off:.0e} |", asked, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    print("| reference | eager ms | float64, cuDNN | float64, PyTorch | apart |")
    print("|---|---:|---:|---:|---:|")
    sums = [0.0, 0.0]
    for path in sorted(args.folder.glob("*.py")):
        if not any(c in path.read_text() for c in CONVOLUTIONS):
            continue
        with torch.device("cuda"), torch.no_grad():
            line, *both = row(path)
        sums = [s + ms for s, ms in zip(sums, both, strict=True)]
        print(line, flush=True)
        torch.cuda.empty_cache()
    print(f"| all | | {sums[0]:.0f} | {sums[1]:.0f} | |")


if __name__ == "__main__":
    main()
