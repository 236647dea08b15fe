"""Runs ``make test`` again and again beside busy processes: is every run green, and how long does
each take?

    python bench/steady.py --runs 10 --busy 4

Each runs all of it: what Go remembers of packages that have not changed is not asked.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

ROOT = pathlib.Path(__file__).parent.parent
# How pytest's last line counts, and what a test says that could not measure.
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")
UNMEASURED = re.compile(r"^SKIPPED \[(\d+)\].*not measured", re.MULTILINE)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps so many processes computing, on any core."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for p in others:
            p.kill()
            p.wait()


def processor_s() -> float:
    """Returns the processor time of all that has ended and was waited for, in seconds: servers that
    are kept warm are not among them.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=4, help="processes that compute beside it")
    parser.add_argument("--logs", type=pathlib.Path, default=ROOT / ".kernelwright" / "steady")
    parser.add_argument("make", nargs="*", help="for make, after --")
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)
    print("| run | green | min | processor s | passed | not measured |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    red = 0
    env = os.environ | {"GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -count=1".strip()}
    with busy(args.busy):
        for run in range(1, args.runs + 1):
            start, before = time.monotonic(), processor_s()
            log = args.logs / f"{run}.log"
            with log.open("w") as out:
                # A session of its own, as a terminal's: the scheduler shares by sessions.
                made = subprocess.run(
                    ["make", "test", *args.make],
                    cwd=ROOT,
                    env=env,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            text = log.read_text(errors="replace")
            passed = sum(int(n) for n, what in COUNTS.findall(text) if what == "passed")
            unmeasured = sum(map(int, UNMEASURED.findall(text)))
            red += made.returncode != 0
            green = "no: " + log.name if made.returncode else "yes"
            minutes, used = (time.monotonic() - start) / 60, processor_s() - before
            counts = f"{passed} | {unmeasured}"
            print(f"| {run} | {green} | {minutes:.1f} | {used:.0f} | {counts} |", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
