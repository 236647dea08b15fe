"""Prints how long one verdict takes: ours beside KernelBench's and CudaForge's, from one run.

Each gets the same reference and the same candidate, with a comment that nobody has seen, so that
nothing of the candidate is in a cache. A peer is its own checkout (``--kernelbench``,
``--cudaforge``), in a new process per candidate, as its scripts do it; ours is ``kernelwright
eval``, whose process with PyTorch in it waits from the last one, and which knows the baselines of
a task from the first verdict on it. That first one is not counted, but shown. CudaForge profiles a
correct candidate in another process; ours by ``--profile``, within the verdict. A native candidate
is given to peers as the file that kernelwright hands out, with the loader written into it.

Every measurement is appended to a file as it is reached, and the tables are printed from there:
after ``--seconds`` nothing new is begun, and exit code 75 says that more is left. What is in the
file is not measured again, also where a peer failed.
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
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "hwfeedback" / "harness"))

from kwharness.export.inline_loader import standalone  # noqa: E402

NONE = "–"
PEERS = ("KernelBench", "CudaForge", "its ncu")
WHAT = ("first", "quick", *PEERS, "profiled", "certify")  # that is measured of a candidate
CANDIDATES = [
    ROOT / "examples" / "candidates" / name
    for name in (
        "softmax_cuda.py",
        "softmax_cuda_kernel.py",
        "softmax_cuda_load_inline.py",
        "softmax_triton.py",
    )
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


def peer(script: str, checkout: str, *words: str) -> dict[str, Any]:
    """Returns seconds of the process, those of the call within it, and what it said."""
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
        return {"fails": (done.stderr.strip().splitlines() or ["?"])[-1][:60]}
    call = re.search(r"SECONDS ([\d.]+)", done.stdout)
    said = re.search(r"SAYS (.+)", done.stdout)
    return {
        "seconds": took,
        "within": float(call[1]) if call else None,
        "says": said[1] if said else "?",
    }


def ours(args: argparse.Namespace, reference: str, path: str, *more: str) -> dict[str, Any]:
    """Returns seconds of the process, and what of the verdict the tables show."""
    words = [args.bin, "eval", reference, path, *more, "--device", args.device, "--json"]
    words += ["--data-dir", args.data_dir, *(["--python", args.python] if args.python else [])]
    begun = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    took = time.perf_counter() - begun
    with contextlib.suppress(ValueError):
        v = json.loads(done.stdout)
        if "status" in v:
            return {
                "seconds": took,
                "status": v["status"],
                "reason": v["reason"],
                "eager_ms": v["baselines"].get("eager", 0.0),
                "build_s": (v["build"] or {}).get("seconds") or 0.0,
                "cost_s": v["cost_s"],
            }
    sys.exit(f"{' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")


class Run:
    """Measurements, kept in a file."""

    def __init__(self, path: pathlib.Path, seconds: float) -> None:
        self.path = path
        self.end = time.monotonic() + seconds
        self.whole = True  # nothing is left for another time
        self.kept: list[dict[str, Any]] = []
        if path.exists():
            self.kept = [json.loads(line) for line in path.read_text().splitlines()]

    def of(self, task: str, candidate: str, what: str) -> list[dict[str, Any]]:
        key = [task, candidate, what]
        return [r for r in self.kept if [r["task"], r["candidate"], r["what"]] == key]

    def take(
        self, key: tuple[str, str, str], n: int, measure: Callable[[], dict[str, Any]]
    ) -> None:
        """Measures until there are n of the task, the candidate and the kind, or time is over."""
        left = n - len(self.of(*key))
        while left > 0 and time.monotonic() < self.end:
            row = dict(zip(("task", "candidate", "what"), key, strict=True)) | measure()
            self.kept.append(row)
            with self.path.open("a") as f:
                f.write(json.dumps(row) + "\n")
            left -= 1
        self.whole = self.whole and left <= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", help="an interpreter with PyTorch, for ours")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--reference", action="append", help="in place of softmax; more than once for several"
    )
    parser.add_argument("--candidate", action="append", help="in place of those for softmax")
    parser.add_argument("--kernelbench", type=os.path.abspath, help="a checkout of KernelBench")
    parser.add_argument("--cudaforge", type=os.path.abspath, help="a checkout of CudaForge")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=540.0, help="then it stops, and goes on")
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a file to append to")
    args = parser.parse_args()
    given = args.reference or [ROOT / "examples" / "softmax.py"]
    references = [str(pathlib.Path(r).resolve()) for r in given]
    candidates = [pathlib.Path(c) for c in args.candidate or map(str, CANDIDATES)]
    run = Run(args.results, args.seconds)
    for reference in references:
        warm: list[str] = []  # what was judged of this task since this script began
        for path in candidates:
            measure(run, args, reference, path, warm)
    tasks = [pathlib.Path(r).stem for r in references]
    print(told(run, tasks, [p.name for p in candidates]))
    sys.exit(0 if run.whole else os.EX_TEMPFAIL)


def measure(
    run: Run, args: argparse.Namespace, reference: str, path: pathlib.Path, warm: list[str]
) -> None:
    """Measures what is left of a line. Each evaluation gets a candidate that nobody has seen."""
    source, task = path.read_text(), pathlib.Path(reference).stem
    form = "triton" if "import triton" in source else "cuda"

    def theirs(what: str, script: str, checkout: str | None, *more: str) -> None:
        if not checkout:
            return

        def once() -> dict[str, Any]:
            with written(standalone(variant(source))) as file:
                return peer(script, checkout, reference, file, *more)

        run.take((task, path.name, what), 1, once)

    def judged(what: str, n: int, *more: str) -> None:
        def once() -> dict[str, Any]:
            # It goes on from another time: that a process with PyTorch begins is not counted.
            if not warm and any(r["task"] == task for r in run.kept):
                with written(variant(source)) as file:
                    ours(args, reference, file)
            warm.append(what)
            with written(variant(source)) as file:
                return ours(args, reference, file, *more)

        run.take((task, path.name, what), n, once)

    judged("first", 1)
    judged("quick", args.repeats)
    theirs("KernelBench", KERNELBENCH, args.kernelbench, form)
    theirs("CudaForge", CUDAFORGE, args.cudaforge)
    theirs("its ncu", CUDAFORGE_PROFILE, args.cudaforge)
    if args.device != "cpu":
        # The first is with the reference's profile, unless that is known.
        judged("profiled", 2, "--profile")
    judged("certify", 1, "--level", "certify")


def told(run: Run, tasks: list[str], candidates: list[str]) -> str:
    """Returns the tables, from what is in the file."""
    lines = [
        "\nSeconds of a whole process, in brackets those of the call within it:\n",
        "| task | eager ms | candidate | KernelBench | CudaForge | its ncu | **quick** | compiled "
        "| quick, profiled | certify |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    of_ours = [
        "\nSeconds of ours within the referee (cost_s), medians:\n",
        "| task | candidate | verdict | build | verify | time | the rest | all |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for task in tasks:
        for name in candidates:
            by = {what: run.of(task, name, what) for what in WHAT}
            quick, first, profiled = by["quick"], by["first"], by["profiled"]
            eager = f"{quick[-1]['eager_ms']:.3g}" if quick else NONE
            middle, built = (median(quick, k) for k in ("seconds", "build_s"))
            cells = [task, eager, name, *(cell(by[p]) for p in PEERS)]
            cells.append(f"**{middle}**{bad(quick)}" + (f" (first {cell(first)})" if first else ""))
            cells.append(built)
            again = f" (first {cell(profiled[:1])})" if len(profiled) > 1 else ""
            cells.append(cell(profiled[-1:]) + again)
            cells.append(cell(by["certify"]))
            lines.append("| " + " | ".join(cells) + " |")
            for what in ("quick", "profiled", "certify"):
                costs = [r["cost_s"] for r in by[what] if r.get("cost_s")]
                if costs:
                    of_ours.append(f"| {task} | {name} | {what} | " + parts(costs) + " |")
    return "\n".join([*lines, *(of_ours if len(of_ours) > 3 else [])])


def cell(rows: list[dict[str, Any]]) -> str:
    """Returns what the last of these came to."""
    if not rows:
        return NONE
    row = rows[-1]
    if "fails" in row:
        return f"fails: {row['fails']}"
    if "says" not in row:
        return f"{row['seconds']:.1f}{bad([row])}"
    within = "?" if row["within"] is None else f"{row['within']:.1f}"
    return f"{row['seconds']:.1f} ({within}), {row['says']}"


def bad(rows: list[dict[str, Any]]) -> str:
    """Returns what the last verdict that is not a good one says."""
    found = [r for r in rows if r["status"] not in ("correct", "certified")]
    return f", {found[-1]['status']}: {found[-1]['reason'][:60]}" if found else ""


def median(rows: list[dict[str, Any]], key: str) -> str:
    return f"{statistics.median(r[key] for r in rows):.1f}" if rows else NONE


def parts(costs: list[dict[str, float]]) -> str:
    """Returns cells with the parts that a candidate is waited for, what is left, and all of it."""
    named = [statistics.median(c.get(p, 0.0) for c in costs) for p in ("build", "verify", "time")]
    total = statistics.median(c.get("total", 0.0) for c in costs)
    return " | ".join(f"{s:.2f}" for s in (*named, max(total - sum(named), 0.0), total))


@contextlib.contextmanager
def written(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(text)
        f.flush()
        yield f.name


if __name__ == "__main__":
    main()
