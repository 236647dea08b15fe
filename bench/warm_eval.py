"""Prints how long a warm ``kernelwright eval`` takes, from the command line to its answer.

The candidates are the kernels of the runs that bench/examples_table.py left, so calibration and
baselines are known, or files (``--candidate``). Each is given with a comment in its C++ and a
statement that nobody has seen, so neither a build nor a verdict is in a cache. The process that has
imported PyTorch waits, as it does for five minutes after an ``eval`` (``evaluation.keep_warm``).
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
        words = ["--python", args.python, "--device", args.device]
        words += ["--profile"] if args.profile else []
        verdict = ask(args, "eval", reference, f.name, *words)
        return time.perf_counter() - begun, verdict


def took(verdict: Any, part: str) -> float:
    """Returns the seconds of a part, with what it waited for others."""
    parts = verdict["cost_s"].items()
    return sum(s for name, s in parts if name == part or name.startswith(f"{part} "))


def repeated(
    args: argparse.Namespace, reference: str, source: str
) -> tuple[float, list[float], list[dict[str, Any]]]:
    """Returns the seconds of the first evaluation, which finds what is not known yet and leaves the
    environment warm, and those of the next ones with their verdicts.
    """
    first, _ = evaluate(args, reference, source)
    taken = []
    for _ in range(args.repeats):
        time.sleep(args.pause)
        taken.append(evaluate(args, reference, source))
    bad = [v for _, v in taken if not v["baselines"]]
    if bad:
        sys.exit(f"{reference}: {bad[0]['status']}: {bad[0]['reason']}")
    return first, [s for s, _ in taken], [v for _, v in taken]


def eager_ms(verdicts: list[dict[str, Any]]) -> float:
    return statistics.median(v["baselines"]["eager"] for v in verdicts)


def parts(
    args: argparse.Namespace, seconds: list[float], verdicts: list[dict[str, Any]]
) -> list[str]:
    """Returns cells with the parts of the verdicts' cost, and with what of the whole is left."""
    cost = [statistics.median(took(v, p) for v in verdicts) for p in named(args)]
    return [f"{s:.2f}" for s in (*cost, statistics.median(seconds) - sum(cost))]


def named(args: argparse.Namespace) -> tuple[str, ...]:
    return (*PARTS, "profile") if args.profile else PARTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", required=True, help="the environment of those runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", action="store_true", help="each verdict with its profile")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before the next one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reference", default=str(ROOT / "examples" / "softmax.py"))
    parser.add_argument("--candidate", action="append", help="of the reference; several times")
    args = parser.parse_args()
    print("\nSeconds of `kernelwright eval`, from its start to its answer:\n")
    if args.candidate:
        of_files(args)
    else:
        of_runs(args)


def of_files(args: argparse.Namespace) -> None:
    """Prints a row for each candidate that is a file. The referee's share is cost_s.total: what is
    above it is the command's.
    """
    heads = ["candidate", "eager ms", "the first", "**the next ones**", "each of them"]
    print(f"| {' | '.join([*heads, 'the referee', *named(args), 'rest'])} |")
    print(f"|---|---:|---:|---:|---|{'---:|' * (len(named(args)) + 2)}")
    for path in map(pathlib.Path, args.candidate):
        first, seconds, verdicts = repeated(args, args.reference, path.read_text())
        each = ", ".join(f"{s:.2f}" for s in seconds)
        referee = statistics.median(v["cost_s"]["total"] for v in verdicts)
        cells = [path.name, f"{eager_ms(verdicts):.3g}", f"{first:.2f}"]
        cells += [f"**{statistics.median(seconds):.2f}**", each, f"{referee:.2f}"]
        cells += parts(args, seconds, verdicts)
        print(f"| {' | '.join(cells)} |", flush=True)


def of_runs(args: argparse.Namespace) -> None:
    """Prints a row for the kernel of each run, and how many reach the goal."""
    print(f"| task | eager ms | in and out, MB | **seconds** | {' | '.join(named(args))} | rest |")
    print(f"|---|{'---:|' * (len(named(args)) + 4)}")
    within = small = 0
    for run in reversed(ask(args, "history", "ls", "--status", "done", "--limit", "1000")["runs"]):
        shown = ask(args, "history", "show", str(run["id"]))
        task = shown["task"]
        best = shown["run"].get("best")
        if not best or not pathlib.Path(run["path"]).exists():
            continue
        _, taken, verdicts = repeated(args, run["path"], best["candidate"]["source"])
        seconds, eager = statistics.median(taken), eager_ms(verdicts)
        moved = sum(
            4 * math.prod(t["shape"]) for t in [*task["inputs"], *task["outputs"]]
        )  # of float32; indices are larger
        small += eager <= GOAL_MS
        within += eager <= GOAL_MS and seconds < GOAL_S
        cells = [task["name"], f"{eager:.3g}", f"{moved / 1e6:.1f}", f"**{seconds:.2f}**"]
        print(f"| {' | '.join([*cells, *parts(args, taken, verdicts)])} |", flush=True)
    print()
    print(f"{within} of {small} tasks whose eager takes up to {GOAL_MS:g} ms: under {GOAL_S:g} s.")


if __name__ == "__main__":
    main()
