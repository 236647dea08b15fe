"""What a KernelBench-style evaluation of one candidate takes on this CPU, part by part.

The recipe, in our own words and code: import the reference and the candidate in one process, where
importing the candidate builds its ``load_inline`` extension; compare the two with a fixed
tolerance on a few random inputs; then time forward after forward on one input, the clock in the
same process. It is here to be compared with in seconds, not in strictness.

    python bench/kernelbench_style.py REFERENCE CANDIDATE [--trials 5] [--repetitions 100]

Prints one JSON object: the seconds of each part, whether the outputs were close, and the times.
Without arguments it uses a one-line pointwise task and a ``load_inline`` kernel of its own.
"""

from __future__ import annotations

import time

_started = time.perf_counter()

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

REFERENCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0

def get_inputs():
    return [torch.randn(1024, 1024)]

def get_init_inputs():
    return []
"""

CANDIDATE = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r'''
#include <torch/extension.h>
torch::Tensor scaled_relu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = y.data_ptr<float>();
    const int64_t n = x.numel();
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) b[i] = a[i] > 0 ? 2 * a[i] : 0;
    return y;
}
'''
ext = load_inline(
    name="scaled_relu", cpp_sources=source, functions=["scaled_relu"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)

class ModelNew(nn.Module):
    def forward(self, x):
        return ext.scaled_relu(x)
"""


class Stopwatch:
    """Seconds by part, in order."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def part(self, name: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return run()
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - start


def load(path: Path, name: str) -> ModuleType:
    """Imports a file under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def evaluate(reference: Path, candidate: Path, trials: int, repetitions: int) -> dict[str, Any]:
    """Returns the parts in seconds and what they found."""
    watch = Stopwatch()

    def import_torch() -> ModuleType:
        import torch

        return torch

    torch = watch.part("import_torch", import_torch)

    def seed(value: int) -> None:
        torch.manual_seed(value)

    def models() -> tuple[Any, Any]:
        init = ref.get_init_inputs()
        seed(42)
        a = ref.Model(*init).eval()
        seed(42)
        return a, cand.ModelNew(*init).eval()

    def compare() -> bool:
        close = True
        for trial in range(trials):
            seed(trial)
            inputs = ref.get_inputs()
            want, got = model(*inputs), new(*inputs)
            close = close and torch.allclose(want, got, rtol=1e-2, atol=1e-2)
        return close

    def perf(forward: Any) -> dict[str, float]:
        seed(0)
        inputs = ref.get_inputs()
        for _ in range(3):
            forward(*inputs)
        times = []
        for _ in range(repetitions):
            start = time.perf_counter()
            forward(*inputs)
            times.append(1000 * (time.perf_counter() - start))
        return {"mean_ms": statistics.mean(times), "median_ms": statistics.median(times)}

    with torch.no_grad():
        ref = watch.part("import_reference", lambda: load(reference, "reference"))
        cand = watch.part("build", lambda: load(candidate, "candidate"))
        model, new = watch.part("construct", models)
        close = watch.part("verify", compare)
        candidate_time = watch.part("time", lambda: perf(new))
        reference_time = watch.part("time_reference", lambda: perf(model))
    return {
        "parts_s": {k: round(v, 4) for k, v in watch.parts.items()},
        "total_s": round(time.perf_counter() - _started, 4),
        "close": close,
        "candidate": candidate_time,
        "eager": reference_time,
        "trials": trials,
        "repetitions": repetitions,
        "threads": torch.get_num_threads(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="a KernelBench-style evaluation, part by part")
    parser.add_argument("reference", nargs="?", type=Path)
    parser.add_argument("candidate", nargs="?", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--cached", action="store_true", help="keep the extension's build folder")
    args = parser.parse_args()
    if (args.reference is None) != (args.candidate is None):
        parser.error("give both files or none")
    # Ninja, where pip put it, must be found beside the interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with tempfile.TemporaryDirectory() as folder:
        if not args.cached:
            os.environ["TORCH_EXTENSIONS_DIR"] = folder
        reference, candidate = args.reference, args.candidate
        if reference is None:
            reference, candidate = Path(folder) / "reference.py", Path(folder) / "candidate.py"
            reference.write_text(REFERENCE)
            candidate.write_text(CANDIDATE)
        print(json.dumps(evaluate(reference, candidate, args.trials, args.repetitions), indent=2))


if __name__ == "__main__":
    main()
