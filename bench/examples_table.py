"""Runs the built-in Coder over all examples and prints their table in bench/notes.

Covered: the Coder wrote a candidate. Certified: a kernel passed the strict verdict. Won: the
interval of its speedup against the fastest baseline lies above 1. Custom: the share of a forward's
time that was spent in the Coder's own code.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


def kernelwright(args: argparse.Namespace, *words: str) -> dict[str, Any]:
    """Returns what a command prints as JSON. Exit code 3 says that something found no kernel."""
    command = [args.bin, *words, "--data-dir", args.data_dir, "--json", "--log-level", "warn"]
    if args.python and words[0] == "run":
        command += ["--python", args.python]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return json.loads(done.stdout)


def milliseconds(value: float | None) -> str:
    return "–" if not value else f"{value:.3g}"


def row(run: dict[str, Any], best: dict[str, Any] | None) -> str:
    """Returns one line of the table. ``best`` is the verdict that counts for the run."""
    s, b = run.get("speedup"), run.get("baselines") or {}
    speedup = f"{s['value']:.2f} ({s['low']:.2f} to {s['high']:.2f})" if s else "–"
    work = (best or {}).get("work") or {}
    cells = [
        run["task"],
        run["status"].replace("_", " "),
        str(run["rounds"]),
        milliseconds(run.get("candidate_ms")),
        *(milliseconds(b.get(n)) for n in ("eager", "compile", "max-autotune")),
        speedup,
        s["against"] if s else "–",
        f"{100 * run['headroom']:.0f} %" if run.get("headroom") else "–",
        f"{100 * work['custom']:.0f} %" if best else "–",
    ]
    return "| " + " | ".join(cells) + " |"


def best_verdict(shown: dict[str, Any], index: int) -> dict[str, Any] | None:
    for r in shown["rounds"]:
        if r["index"] == index:
            return r.get("certificate") or r["verdict"]
    return None


def summary(runs: list[dict[str, Any]]) -> list[str]:
    certified = [r for r in runs if r["status"] == "certified" and r.get("speedup")]
    won = [r for r in certified if r["speedup"]["low"] > 1.0]
    by_five = [r for r in certified if r["speedup"]["low"] > 1.05]
    lost = [r for r in certified if r["speedup"]["high"] < 1.0]
    covered = [r for r in runs if r["rounds"] > 0]
    lines = [
        f"{len(runs)} examples: {len(covered)} covered, {len(certified)} certified, {len(won)} "
        f"faster than the fastest baseline ({len(by_five)} of them by over 5 %), "
        f"{len(lost)} slower, the rest not to be told apart."
    ]
    if certified:
        mean = math.exp(sum(math.log(r["speedup"]["value"]) for r in certified) / len(certified))
        lines.append(f"Geometric mean of the speedup over the certified: {mean:.2f}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", default="", help="interpreter with PyTorch; empty: one is made")
    parser.add_argument("--rounds", default="10")
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded first")
    parser.add_argument("files", nargs="*", help="references; none: all examples")
    args = parser.parse_args()
    files = args.files or sorted(str(p) for p in (ROOT / "examples").glob("*.py"))
    if args.fresh:
        shutil.rmtree(args.data_dir, ignore_errors=True)
    out = pathlib.Path(args.data_dir) / "results"
    said = kernelwright(args, "run", "--rounds", args.rounds, "--out", str(out), *files)
    runs = said["runs"]
    print(
        "| task | verdict | rounds | ms | eager | compile | max-autotune "
        "| speedup | against | headroom | custom |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---|---|---:|---:|")
    for run in runs:
        best = None
        if run["round"] is not None:
            shown = kernelwright(args, "history", "show", str(run["run"]))
            best = best_verdict(shown, run["round"])
        print(row(run, best))
    print()
    print("\n".join(summary(runs)))
    if said.get("exit_code", 0) not in (0, 3):  # 3: not every run brought a kernel
        sys.exit(f"{said['error']}: {said.get('hint', '')}")


if __name__ == "__main__":
    main()
