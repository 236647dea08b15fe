"""Prints how long a warm ``kernelwright eval`` takes, from the command line to its answer.

The candidates are the kernels of the runs that bench/examples_table.py left, so calibration and
baselines are known. Each is given with a comment in its C++ and a statement that nobody has seen,
so neither a build nor a verdict is in a cache. The process that has imported PyTorch waits, as it
does for five minutes after an ``eval`` (``evaluation.keep_warm``).
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
GOAL_MS, GOAL_S = 5.0, 2.0
PARTS = ("build", "worker", "load", "verify", "trace", "baselines", "time")


def ask(args: argparse.Namespace, *words: str) -> dict[str, Any]:
    command = [args.bin, *words, "--data-dir", args.data_dir, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return json.loads(done.stdout)


def variant(source: str) -> str:
    mark = str(time.time_ns())
    return source.replace('r"""', f'r"""// {mark}\n', 1) + f"\nvariant = {mark}\n"


def evaluate(args: argparse.Namespace, reference: str, source: str) -> tuple[float, dict[str, Any]]:
    """Returns the seconds of one evaluation, with the process around it, and its verdict."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(variant(source))
        f.flush()
        begun = time.perf_counter()
        verdict = ask(args, "eval", reference, f.name, "--python", args.python)
        return time.perf_counter() - begun, verdict


def took(verdict: Any, part: str) -> float:
    """Returns the seconds of a part, with what it waited for others."""
    parts = verdict["cost_s"].items()
    return sum(s for name, s in parts if name == part or name.startswith(f"{part} "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", required=True, help="the environment of those runs")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    print("\nSeconds of `kernelwright eval`, from its start to its answer:\n")
    print(f"| task | eager ms | in and out, MB | **seconds** | {' | '.join(PARTS)} | rest |")
    print(f"|---|{'---:|' * (len(PARTS) + 4)}")
    within = small = 0
    for run in reversed(ask(args, "history", "ls", "--status", "done", "--limit", "1000")["runs"]):
        shown = ask(args, "history", "show", str(run["id"]))
        task = shown["task"]
        best = shown["run"].get("best")
        if not best or not pathlib.Path(run["path"]).exists():
            continue
        source = best["candidate"]["source"]
        evaluate(args, run["path"], source)  # finds the environment warm for the others
        taken = [evaluate(args, run["path"], source) for _ in range(args.repeats)]
        seconds = statistics.median(s for s, _ in taken)
        verdicts = [v for _, v in taken]
        if not all(v["baselines"] for v in verdicts):
            sys.exit(f"{task['name']}: {verdicts[0]['status']}: {verdicts[0]['reason']}")
        eager = statistics.median(v["baselines"]["eager"] for v in verdicts)
        cost = {p: statistics.median(took(v, p) for v in verdicts) for p in PARTS}
        rest = seconds - sum(cost.values())
        moved = sum(
            4 * math.prod(t["shape"]) for t in [*task["inputs"], *task["outputs"]]
        )  # of float32; indices are larger
        small += eager <= GOAL_MS
        within += eager <= GOAL_MS and seconds < GOAL_S
        cells = " | ".join(f"{cost[p]:.2f}" for p in PARTS)
        print(
            f"| {task['name']} | {eager:.3g} | {moved / 1e6:.1f} | **{seconds:.2f}** | "
            f"{cells} | {rest:.2f} |",
            flush=True,
        )
    print()
    print(f"{within} of {small} tasks whose eager takes up to {GOAL_MS:g} ms: under {GOAL_S:g} s.")


if __name__ == "__main__":
    main()
