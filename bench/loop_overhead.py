"""Prints what the loop costs beside its Coder, its Judge and the evaluator, from recorded runs.

The daemon records it with every round: scheduling, the store, and everything else that is neither
writing a candidate nor judging nor building nor measuring one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


def ask(args: argparse.Namespace, *words: str) -> dict[str, Any]:
    command = [args.bin, "history", *words, "--data-dir", args.data_dir, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    args = parser.parse_args()
    overhead: list[float] = []
    whole: list[float] = []
    for run in ask(args, "ls", "--status", "done", "--limit", "1000")["runs"]:
        for r in ask(args, "show", str(run["id"]))["rounds"]:
            overhead.append(r["overhead_ms"])
            whole.append(r["finished"] - r["started"])
    if not overhead:
        sys.exit("no rounds are recorded there")
    overhead.sort()
    print("| rounds | median overhead | 95th percentile | largest | median of a whole round |")
    print("|---:|---:|---:|---:|---:|")
    print(
        f"| {len(overhead)} | {statistics.median(overhead):.1f} ms | "
        f"{overhead[int(0.95 * (len(overhead) - 1))]:.1f} ms | {overhead[-1]:.1f} ms | "
        f"{statistics.median(whole) / 1000:.1f} s |"
    )


if __name__ == "__main__":
    main()
