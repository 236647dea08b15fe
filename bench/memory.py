"""Prints how much memory judging a task takes on a CPU, in times of what its call has as inputs.

Where it is taken one thing after the other, as for large tasks, and with everything at once. What
counts is what the judge, the reference's and the candidate's processes have together, shared pages
in parts: on a GPU torch keeps more for later, for as long as there is room.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
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
from test_sparing import Watch  # noqa: E402

from kwharness.machine import device  # noqa: E402

MIB = 64  # of inputs, and of outputs but for the loss
REFERENCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(8, 64)

    def forward(self, {names}):
        return {forward}


def get_inputs():
    return [torch.rand({shape}) for _ in range({count})]


def get_init_inputs():
    return []
"""
# Name, forward, inputs.
TASKS = (
    ("swish", "x * torch.sigmoid(x)", "x"),
    ("softmax", "torch.softmax(x.flatten(1), -1)", "x"),
    ("l1_norm", "x / torch.mean(torch.abs(x), dim=1, keepdim=True)", "x"),
    ("group_norm", "self.norm(x)", "x"),
    ("mse_loss", "torch.mean((x - y) ** 2)", "x, y"),
)


def take(watch: Watch) -> int:
    """Returns the most bytes since it was last asked."""
    time.sleep(0.1)
    most, watch.most = watch.most, 0
    return most


def measure(watch: Watch, text: str, spares: bool) -> list[float]:
    """Returns what inspecting and calibrating take, and a verdict without times."""
    device.PEAK = 1 << 60 if spares else 0
    found: list[float] = []
    with tempfile.TemporaryDirectory() as cache:
        evaluator = Evaluator(cache)
        try:
            small = text.replace("128, 256", "1, 256")  # what is loaded once is
            evaluator.verdict(small, candidate(small), require_custom=False)
            take(watch)
            before = take(watch)
            for what in (evaluator.task, evaluator.calibration, lambda t: verdict(evaluator, t)):
                what(text)
                found.append((take(watch) - before) / (MIB << 20))
        finally:
            evaluator.close()
    return found


def candidate(text: str) -> str:
    return text + "\nModelNew = Model\n"


def verdict(evaluator: Evaluator, text: str) -> None:
    v: dict[str, Any] = evaluator.verdict(text, candidate(text), require_custom=False)
    if v["status"] != "correct":
        sys.exit(f"{v['status']}: {v['reason']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", action="append", choices=[t[0] for t in TASKS])
    parser.add_argument("--all-at-once", action="store_true", help="so, too: takes gigabytes")
    parser.add_argument("--alone", choices=["spared", "all at once"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:  # a process has what it had: each row has one
        (name,) = args.task
        watch = Watch()
        watch.start()
        found = measure(watch, reference(name), args.alone == "spared")
        print(f"| {name} | {args.alone} | " + " | ".join(f"{x:.1f}" for x in found) + " |")
        return
    print("| task | memory | inspect | calibrate | verify |\n|---|---|---:|---:|---:|", flush=True)
    for name in args.task or [t[0] for t in TASKS]:
        for how in ["spared"] + ["all at once"] * args.all_at_once:
            subprocess.run([sys.executable, __file__, "--task", name, "--alone", how], check=True)


def reference(name: str) -> str:
    """Returns the file of one task."""
    ((_, forward, names),) = [t for t in TASKS if t[0] == name]
    count = names.count(",") + 1
    shape = f"{8 // count}, 64, 128, 256"
    return REFERENCE.format(names=names, forward=forward, shape=shape, count=count)


if __name__ == "__main__":
    main()
