"""Prints what the clock is worth on this device, in the harness' own process.

``spread``: how far the medians of fresh processes lie apart, for kernels from microseconds to
milliseconds, and how far the referee's clock is off the worker's. ``agreement``: how far a
verdict's time is from the durations of its kernels by Nsight Compute, which leaves the clocks alone
and starts each with empty caches too. ``statistics``: how often code identical to the reference is
taken for faster, and how often code that is truly 10 % faster is seen. Verdicts are appended to a
file as they are reached, so that a long run may be made in parts: exit code 75 says that more is
left.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT / "hwfeedback" / "harness"),
    str(ROOT / "hwfeedback" / "harness" / "tests"),
    *map(str, (ROOT / "hwfeedback" / "harness" / "tests").glob("*/")),
]

from evaluating import Evaluator  # noqa: E402

from kwharness.profile.profile_forward import TIME  # noqa: E402

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
"""
RELU, PRODUCT = "return torch.relu(x)", "return x @ x"
SPREAD = [
    ("relu, 256 KB", RELU, "64, 1024"),
    ("relu, 8 MB", RELU, "2048, 1024"),
    ("softmax, 16 MB", "return torch.softmax(x, -1)", "4096, 1024"),
    ("relu, 64 MB", RELU, "16384, 1024"),
    ("softmax, 128 MB", "return torch.softmax(x, -1)", "4096, 8192"),
    ("product, 1024", PRODUCT, "1024, 1024"),
    ("product, 2048", PRODUCT, "2048, 2048"),
    ("cumsum, 128 MB", "return torch.cumsum(x, -1)", "4096, 8192"),
    ("product, 4096", PRODUCT, "4096, 4096"),
    ("product, 8192", PRODUCT, "8192, 8192"),
]
# Of these the same code as its own candidate, on a CPU the first.
IDENTICAL = [SPREAD[1], SPREAD[3], SPREAD[4]]
# Takes so many cycles of the GPU, and something besides.
SLEEPS = "torch.cuda._sleep({cycles})\n        return torch.relu(x)"
CYCLES = (18_000, 90_000, 180_000, 900_000, 9_000_000)


def task(body: str, shape: str) -> str:
    return TASK.format(body=body, shape=shape)


def tenth_faster(cycles: int) -> tuple[str, str]:
    """Returns a reference that takes about so many cycles of the GPU, and a candidate that takes a
    tenth less, with all that is not cycles: launches, and a kernel that computes.
    """
    import torch

    x = torch.randn(64, 1024, device="cuda")

    def call(n: int) -> float:
        """Returns milliseconds of one of many calls in a row, the least of some."""
        found = []
        for _ in range(5):
            torch.cuda._sleep(10_000_000)  # the host is ahead
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(200):
                torch.cuda._sleep(n)
                torch.relu(x)
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) / 200)
        return min(found)

    whole, half = call(cycles), call(cycles // 2)
    less = round(0.1 * whole * (cycles - cycles // 2) / (whole - half))
    reference = task(SLEEPS.format(cycles=cycles), "64, 1024")
    candidate = task(SLEEPS.format(cycles=cycles - less), "64, 1024")
    return reference, candidate.replace("Model(", "ModelNew(")


class Run:
    """Verdicts, kept in a file."""

    def __init__(
        self, evaluator: Evaluator, path: pathlib.Path, seconds: float, threads: int
    ) -> None:
        self.evaluator, self.path, self.threads = evaluator, path, threads
        self.end = time.monotonic() + seconds
        self.whole = True  # nothing is left for another time
        self.kept: dict[str, list[dict[str, Any]]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.kept.setdefault(row["name"], []).append(row)

    def verdicts(
        self, name: str, reference: str, candidate: str, n: int, **more: Any
    ) -> list[dict[str, Any]]:
        """Returns n verdicts, or as many as there was time for."""
        rows = self.kept.setdefault(name, [])
        while len(rows) < n and time.monotonic() < self.end:
            begun = time.perf_counter()
            v = self.evaluator.verdict(
                reference,
                candidate,
                "quick",
                time=True,
                want_baselines=["eager"],
                threads=self.threads,
                require_custom=False,
                **more,
            )
            profile = v.get("profile") or {}
            row = {
                "name": name,
                "seconds": time.perf_counter() - begun,
                "status": v["status"],
                "reason": v["reason"],
                "ms": v["candidate_ms"],
                "event_ms": v["timing"].get("candidate", {}).get("event_ms", 0.0),
                "wall_ms": v["timing"].get("candidate", {}).get("wall_ms", 0.0),
                "speedup": v["speedup"],
                "profiled": profile.get("tool", ""),
                "kernels_ms": 1e-6 * (profile.get("metrics") or {}).get(TIME, 0.0),
            }
            rows.append(row)
            with self.path.open("a") as f:
                f.write(json.dumps(row) + "\n")
        self.whole = self.whole and len(rows) >= n
        return rows


def spread(run: Run, n: int) -> None:
    print(
        "| kernel | ms | processes | standard deviation | range | wall - event, us | s a verdict |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, body, shape in SPREAD:
        reference = task(body, shape)
        rows = run.verdicts(name, reference, reference.replace("Model(", "ModelNew("), n)
        times = [r["ms"] for r in rows if r["status"] == "correct"]
        if len(times) < 2:
            print(f"| {name} | – | {len(times)} of {len(rows)} | | | | |", flush=True)
            continue
        middle = statistics.median(times)
        off = statistics.stdev(times) / middle
        far = (max(times) - min(times)) / middle
        each = statistics.median(r["seconds"] for r in rows)
        gaps = [1e3 * (r["wall_ms"] - r["event_ms"]) for r in rows if r["status"] == "correct"]
        print(
            f"| {name} | {middle:.4g} | {len(times)} of {len(rows)} | {off:.2%} | {far:.2%} "
            f"| {statistics.mean(gaps):.2f} ± {statistics.stdev(gaps):.2f} us | {each:.2f} |",
            flush=True,
        )


def agreement(run: Run, n: int) -> None:
    print("| kernel | ms | Nsight Compute's | apart | launches measured by |")
    print("|---|---:|---:|---:|---|")
    for name, body, shape in SPREAD:
        reference = task(body, shape)
        candidate = reference.replace("Model(", "ModelNew(")
        rows = run.verdicts(f"profiled {name}", reference, candidate, n, profile="selected")
        good = [r for r in rows if r["status"] == "correct" and r["kernels_ms"]]
        if not good:
            why = "; ".join(sorted({r["profiled"] or r["reason"] for r in rows})) or "no time left"
            print(f"| {name} | – | | | {why} |", flush=True)
            continue
        ours, theirs = (statistics.median(r[k] for r in good) for k in ("ms", "kernels_ms"))
        tools = ", ".join(sorted({r["profiled"] for r in good}))
        print(f"| {name} | {ours:.4g} | {theirs:.4g} | {ours / theirs - 1:+.1%} | {tools} |")
        sys.stdout.flush()


def outcome(name: str, rows: list[dict[str, Any]]) -> None:
    good = [r for r in rows if r["status"] == "correct"]
    wins = sum(r["speedup"]["low"] > 1 for r in good)
    more = sum(r["speedup"]["low"] >= 1.05 for r in good)
    middle = statistics.median(r["speedup"]["value"] for r in good) if good else 0.0
    ms = statistics.median(r["ms"] for r in good) if good else 0.0
    seen = [r["speedup"] for r in good]
    wide = statistics.median((s["high"] - s["low"]) / s["value"] for s in seen) if seen else 0.0
    off = statistics.stdev(s["value"] for s in seen) if len(seen) > 1 else 0.0
    print(
        f"| {name} | {ms:.4g} | {len(good)} of {len(rows)} | {middle:.3f} | {wins} | {more} "
        f"| {wide:.1%} | {off:.1%} |"
    )
    sys.stdout.flush()


def probabilities(run: Run, n: int, gpu: bool) -> None:
    print(
        "| candidate | ms | verdicts | median speedup | lower end over 1 | 1.05 or more "
        "| width | standard deviation |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, body, shape in IDENTICAL if gpu else IDENTICAL[:1]:
        reference = task(body, shape)
        same = reference.replace("Model(", "ModelNew(")
        outcome(f"identical, {name}", run.verdicts(f"same {name}", reference, same, n))
    for cycles in CYCLES if gpu else ():
        rows = run.verdicts(f"faster {cycles}", *tenth_faster(cycles), n)
        outcome(f"a tenth faster, {cycles} cycles", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["spread", "agreement", "statistics"])
    parser.add_argument("-n", type=int, default=30, help="verdicts of each")
    parser.add_argument("--seconds", type=float, default=540.0, help="then it stops, and goes on")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a file to append to")
    args = parser.parse_args()
    place: dict[str, Any] | None = None
    if args.device == "cuda":
        from test_cuda_driver import SEES

        place = {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]}
    with tempfile.TemporaryDirectory() as cache:
        evaluator = Evaluator(cache, place)
        try:
            run = Run(evaluator, args.results, args.seconds, args.threads)
            if args.what == "spread":
                spread(run, args.n)
            elif args.what == "agreement":
                agreement(run, args.n)
            else:
                probabilities(run, args.n, place is not None)
        finally:
            evaluator.close()
    sys.exit(0 if run.whole else os.EX_TEMPFAIL)


if __name__ == "__main__":
    main()
