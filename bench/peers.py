"""Prints how long one verdict takes: ours beside KernelBench's and CudaForge's, from one run.

Each gets the same reference and the same candidate, with a comment that nobody has seen, so that
nothing of the candidate is in a cache. A peer is its own checkout (``--kernelbench``,
``--cudaforge``), in a new process per candidate, as its scripts do it; ours is ``kernelwright
eval``, whose process with PyTorch in it waits from the last one, and which knows the baselines of
a task from the first verdict on it. That first one is not counted, but shown. CudaForge profiles a
correct candidate in another process; ours by ``--profile``, within the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
CANDIDATES = [
    ROOT / "examples" / "candidates" / name
    for name in ("softmax_cuda.py", "softmax_cuda_load_inline.py", "softmax_triton.py")
]
KERNELBENCH = """
import sys, time
sys.path.insert(0, sys.argv[1] + "/src")
from kernelbench.eval import eval_kernel_against_ref
reference, candidate, backend, build = sys.argv[2:6]
begun = time.perf_counter()
result = eval_kernel_against_ref(
    open(reference).read(), open(candidate).read(), num_correct_trials=5, num_perf_trials=100,
    measure_performance=True, build_dir=build, device=0, backend=backend,
)
print("SECONDS", time.perf_counter() - begun)
print("SAYS", "correct" if result.correctness else "wrong")
"""
CUDAFORGE = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from utils.compile_and_run import compare_and_bench
begun = time.perf_counter()
result = compare_and_bench(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), log_dir=None)
print("SECONDS", time.perf_counter() - begun)
print("SAYS accepted")
"""
# What it does next with a correct candidate. pandas reads the numbers later, and may be missing.
CUDAFORGE_PROFILE = """
import importlib.util, pathlib, shutil, sys, time, types
if importlib.util.find_spec("pandas") is None:
    sys.modules["pandas"] = types.SimpleNamespace(DataFrame=object, Series=object)
checkout, reference, candidate = sys.argv[1:4]
sys.path.insert(0, checkout)
from run_ncu import profile_bench
shutil.copy(reference, "ref_0.py")
shutil.copy(candidate, "test_kernel_0.py")
begun = time.perf_counter()
written = profile_bench(bench_py=checkout + "/bench_ref_inputs_0.py", out_csv="ncu.csv")
print("SECONDS", time.perf_counter() - begun)
print("SAYS", sum(line.startswith('"') for line in written.open()) - 2, "launches measured")
"""


def variant(source: str) -> str:
    """Returns the candidate with comments that no cache has seen, in the kernel's text as well."""
    mark = str(time.time_ns())
    # Two extensions of one name cannot be loaded, and are kept apart by theirs.
    source = re.sub(r'name="(\w+)"', rf'name="\1_{mark}"', source)
    return source.replace('r"""', f'r"""// {mark}\n', 1) + f"\nvariant = {mark}\n"


def peer(script: str, checkout: str, *words: str) -> str:
    """Returns a cell of the table: seconds of the process and what it said."""
    with tempfile.TemporaryDirectory() as build:
        more = [build] if script is KERNELBENCH else []
        env = os.environ | {"TORCH_EXTENSIONS_DIR": build, "TRITON_CACHE_DIR": f"{build}/triton"}
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script, checkout, *words, *more],
            capture_output=True, text=True, env=env, cwd=build,
        )  # fmt: skip
        took = time.perf_counter() - begun
    if done.returncode:
        return f"fails: {(done.stderr.strip().splitlines() or ['?'])[-1][:60]}"
    call = re.search(r"SECONDS ([\d.]+)", done.stdout)
    said = re.search(r"SAYS (.+)", done.stdout)
    within = f"{float(call[1]):.1f}" if call else "?"
    return f"{took:.1f} ({within}), {said[1] if said else '?'}"


def ours(args: argparse.Namespace, reference: str, path: str, *more: str) -> tuple[float, Any]:
    words = [args.bin, "eval", reference, path, *more, "--device", args.device, "--json"]
    words += ["--data-dir", args.data_dir, *(["--python", args.python] if args.python else [])]
    begun = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    took = time.perf_counter() - begun
    with contextlib.suppress(ValueError):
        said = json.loads(done.stdout)
        if "status" in said:
            return took, said
    sys.exit(f"{' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", help="an interpreter with PyTorch, for ours")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reference", action="append", help="more than once for several")
    parser.add_argument("--candidate", action="append", help="in place of those for softmax")
    parser.add_argument("--kernelbench", type=os.path.abspath, help="a checkout of KernelBench")
    parser.add_argument("--cudaforge", type=os.path.abspath, help="a checkout of CudaForge")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    given = args.reference or [ROOT / "examples" / "softmax.py"]
    references = [str(pathlib.Path(r).resolve()) for r in given]
    candidates = [pathlib.Path(c) for c in args.candidate or map(str, CANDIDATES)]
    print("\nSeconds of a whole process, in brackets those of the call within it:\n")
    print(
        "| task | eager ms | candidate | KernelBench | CudaForge | its ncu | **quick** | build "
        "| quick, profiled | certify |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for reference in references:
        for path in candidates:
            print(row(args, reference, path), flush=True)


def row(args: argparse.Namespace, reference: str, path: pathlib.Path) -> str:
    """Returns a line of the table. Each evaluation gets a candidate that nobody has seen."""
    source = path.read_text()
    form = "triton" if "import triton" in source else "cuda"

    def theirs(script: str, checkout: str | None, *more: str) -> str:
        if not checkout or "kernelwright" in source:
            return "–"
        with written(variant(source)) as file:
            return peer(script, checkout, reference, file, *more)

    def judged(*more: str) -> tuple[float, Any, str]:
        with written(variant(source)) as file:
            took, v = ours(args, reference, file, *more)
        good = v["status"] in ("correct", "certified")
        return took, v, f"{took:.1f}" + ("" if good else f", {v['status']}: {v['reason'][:60]}")

    def profiled() -> str:
        _, _, first = judged("--profile")  # with the reference's profile, unless it is known
        return f"{judged('--profile')[2]} (first {first})"

    _, _, first = judged()
    quick = [judged() for _ in range(args.repeats)]
    cells = [
        pathlib.Path(reference).stem,
        f"{quick[-1][1]['baselines'].get('eager', 0.0):.3g}",
        path.name,
        theirs(KERNELBENCH, args.kernelbench, form),
        theirs(CUDAFORGE, args.cudaforge),
        theirs(CUDAFORGE_PROFILE, args.cudaforge),
        f"**{statistics.median(took for took, _, _ in quick):.1f}** (first {first})",
        f"{statistics.median(v['build']['seconds'] for _, v, _ in quick):.1f}",
        profiled() if args.device != "cpu" else "–",
        judged("--level", "certify")[2],
    ]
    return "| " + " | ".join(cells) + " |"


@contextlib.contextmanager
def written(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(text)
        f.flush()
        yield f.name


if __name__ == "__main__":
    main()
