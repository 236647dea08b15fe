"""Prints what judging large tasks takes, of time and of a GPU's memory, stage by stage.

The candidate is the reference itself, and the baseline eager. Memory is what nvidia-smi shows at
its highest, of the referee, the reference's process and the candidate's together.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT / "hwfeedback" / "harness"),
    str(ROOT / "hwfeedback" / "harness" / "tests"),
    *map(str, (ROOT / "hwfeedback" / "harness" / "tests").glob("*/")),
]

from evaluating import Evaluator  # noqa: E402
from test_cuda_driver import SEES  # noqa: E402

STAGES = ("inspect", "calibrate", "quick", "certify")


class Peak(threading.Thread):
    """The most MiB of the GPU that were taken since ``take``."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0

    def run(self) -> None:
        asked = ["nvidia-smi", f"--id={SEES['gpu_uuid']}", "--query-gpu=memory.used"]
        asked += ["--format=csv,noheader,nounits", "-lms", "30"]
        with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as seen:
            assert seen.stdout is not None
            for line in seen.stdout:
                self.most = max(self.most, int(line))

    def take(self) -> int:
        most, self.most = self.most, 0
        return most


def stage(evaluator: Evaluator, what: str, text: str) -> str:
    """Returns what came of it, "" where that is good."""
    if what == "inspect":
        evaluator.task(text)
        return ""
    if what == "calibrate":
        evaluator.calibration(text)
        return ""
    more: dict[str, Any] = {"time": True, "want_baselines": ["eager"], "require_custom": False}
    v = evaluator.verdict(text, text + "\nModelNew = Model\n", what, **more)
    return "" if v["status"] in ("correct", "certified") else f"{v['status']}: {v['reason']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", nargs="+", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=540.0, help="then no reference is begun")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    place = {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]}
    peak = Peak()
    peak.start()
    print("| task | GiB a call | " + " | ".join(f"{s}, s (GiB)" for s in STAGES) + " |")
    print("|---|---:|" + "---:|" * len(STAGES))
    with (
        tempfile.TemporaryDirectory() as cache,
        contextlib.closing(Evaluator(cache, place)) as evaluator,
    ):
        for path in args.reference:
            if time.monotonic() > end:
                break
            text = path.read_text()
            cells: list[str] = []
            for what in STAGES:
                begun = time.perf_counter()
                peak.take()
                try:
                    said = stage(evaluator, what, text)
                except Exception as e:  # the others are measured all the same
                    said = f"{type(e).__name__}: {e}".partition("\n")[0]
                took = time.perf_counter() - begun
                cells.append(f"{took:.1f} ({peak.take() / 1024:.0f}){' ' + said if said else ''}")
                if said and what in STAGES[:2]:
                    break
            size = evaluator.tasks.get(text, {}).get("least_bytes", 0) / 2**30
            print(f"| {path.stem} | {size:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
