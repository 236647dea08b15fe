"""Prints what the loop costs beside its Coder, its Judge and the evaluator, from recorded runs.

The daemon records it with every round: scheduling, the store, and everything else that is neither
writing a candidate nor judging nor building nor measuring one. Of rounds in which language models
were asked, a second table has all that is beside waiting for their answers and beside the
referee's time: making prompts, reading answers and recording them, too, and what the evaluator does
round the referee.
"""

from __future__ import annotations

import argparse
import datetime
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
    own: list[float] = []
    whole: list[float] = []
    models: list[float] = []
    beside: list[float] = []
    for run in ask(args, "ls", "--status", "done", "--limit", "1000")["runs"]:
        shown = ask(args, "show", str(run["id"]), "--talk")
        waited: dict[int, int] = {}
        for call in shown["talk"]:
            index = call["key"].get("round", 0)
            waited[index] = waited.get(index, 0) + call["took"]
        for r in shown["rounds"]:
            own.append(r["overhead_ms"] or 0.0)
            whole.append(1000 * (at(r["finished"]) - at(r["started"])))
            if r["index"] not in waited:
                continue
            verdict = r["verdict"]
            measured = 0.0
            if not verdict.get("cached"):
                measured = 1000 * (verdict["cost_s"] or {}).get("total", 0.0)
            models.append(whole[-1])
            beside.append(max(whole[-1] - waited[r["index"]] - measured, 0.0))
    if not own:
        sys.exit("no rounds are recorded there")
    table("overhead", own, whole)
    if beside:
        print()
        table("beside models and hardware", beside, models)


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def table(name: str, values: list[float], whole: list[float]) -> None:
    values.sort()
    print(f"| rounds | median {name} | 95th percentile | largest | median of a whole round |")
    print("|---:|---:|---:|---:|---:|")
    print(
        f"| {len(values)} | {statistics.median(values):.1f} ms | "
        f"{values[int(0.95 * (len(values) - 1))]:.1f} ms | {values[-1]:.1f} ms | "
        f"{statistics.median(whole) / 1000:.1f} s |"
    )


if __name__ == "__main__":
    main()
