"""Puts each fault of mutants.toml into a copy of the verdict's code, alone, and asks whether the
tests of the harness find it.

    python bench/mutants.py                       the tests that `make test` runs
    python bench/mutants.py --jobs 8 --only NAME  some of them, on a larger machine

The first trial is a control without a fault: what fails there says nothing of the others. The
tests end at the first failure, unless ``--every`` asks for all that find a fault. A fault that no
test finds is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass

HERE = pathlib.Path(__file__).parent
CONTROL = "no fault"
LEFT_OUT = (".git", ".kernelwright", ".tools", "bin", "demo-out", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Mutant:
    """One fault: ``old`` becomes ``new`` in a file, whose path is relative to the checkout."""

    name: str
    file: str = ""
    old: str = ""
    new: str = ""

    def put_into(self, tree: pathlib.Path) -> None:
        """Raises ValueError where the text does not stand there exactly once."""
        if not self.file:
            return
        path = tree / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places of {self.file} match")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Found:
    """What the tests said of one fault."""

    mutant: Mutant
    failed: list[str]  # tests, in the order in which they failed
    over: bool  # whether all that were asked ran
    seconds: float


def mutants(path: pathlib.Path = HERE / "mutants.toml") -> list[Mutant]:
    """Reads the list."""
    return [Mutant(**row) for row in tomllib.loads(path.read_text())["mutant"]]


# Tests of other faults run beside it: none computes on all cores.
OURS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
# A line of pytest -v, with xdist or without.
FAILED = re.compile(
    r"(?:(?:FAILED|ERROR) (\S+::\S.*?)(?: - .*)?|(\S+::\S.*?) (?:FAILED|ERROR))\s*(?:\[ *\d+%\])?$",
    re.MULTILINE,
)


def trial(
    mutant: Mutant, tree: pathlib.Path, pytest: list[str], limit_s: float, every: bool
) -> Found:
    """Runs the tests on a copy of the checkout that has this fault."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernelwright-mutant-") as folder:
        copy = pathlib.Path(folder) / "tree"
        shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        mutant.put_into(copy)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", "--tb=no"]
        command += [*pytest, *([] if every else ["-x"])]
        # The copy has a folder for temporary files: sockets and leases of others are not its own.
        aside = pathlib.Path(folder) / "tmp"
        aside.mkdir()
        said = pathlib.Path(folder) / "said"
        with said.open("wb") as out:
            tests = subprocess.Popen(
                command,
                cwd=copy,
                env={**os.environ, **OURS, "TMPDIR": str(aside)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                over = tests.wait(limit_s) != 2
            except subprocess.TimeoutExpired:
                over = False
                os.killpg(tests.pid, signal.SIGKILL)
                tests.wait()
        text = said.read_text(errors="replace")
    found = [one or other for one, other in FAILED.findall(text)]
    if not found and tests.returncode not in (0, 5, -signal.SIGKILL):
        found = [f"(pytest: {' '.join(text[-200:].split())})"]
    return Found(mutant, list(dict.fromkeys(found)), over, time.monotonic() - start)


def row(f: Found, known: list[str]) -> str:
    """Returns a line of the table. What fails in the control, ``known``, finds nothing."""
    mine = [t.rpartition("/")[2].replace("|", "/") for t in f.failed if t not in known]
    said = mine[0] if mine else "not found"
    more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
    late = "" if f.over else " (time was up)"
    return f"| {f.mutant.name} | {said}{more}{late} | {f.seconds:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tree", type=pathlib.Path, default=HERE.parent, help="a checkout")
    parser.add_argument("--only", action="append", default=[], help="the name of one")
    parser.add_argument("--jobs", type=int, default=1, help="so many at the same time")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each")
    parser.add_argument("--every", action="store_true", help="go on after the first failure")
    parser.add_argument("--but", type=pathlib.Path, help="such a file, of faults that are found")
    parser.add_argument("--json", type=pathlib.Path, help="a file for all that failed, by fault")
    parser.add_argument("pytest", nargs="*", help="for pytest, after --")
    args = parser.parse_args()
    chosen = [m for m in mutants() if not args.only or m.name in args.only]
    if args.but:
        known = json.loads(args.but.read_text())
        chosen = [m for m in chosen if not set(known.get(m.name, [])) - set(known[CONTROL])]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        given = args.tree, args.pytest, args.limit, args.every
        trials = [pool.submit(trial, m, *given) for m in [Mutant(CONTROL), *chosen]]
        for t in concurrent.futures.as_completed(trials):
            done = t.result()
            first = f", first {done.failed[0]}" if done.failed else ""
            said = f"{done.mutant.name}: {len(done.failed)} failed, {done.seconds:.0f} s{first}"
            print(said, flush=True)
    control, *found = (t.result() for t in trials)
    if args.json:
        args.json.write_text(json.dumps({f.mutant.name: f.failed for f in (control, *found)}))
    print("\n| fault | found by | s |\n|---|---|---|")
    for f in (control, *found):
        print(row(f, [] if f is control else control.failed))
    missed = [f.mutant.name for f in found if not set(f.failed) - set(control.failed)]
    told = ", ".join(missed) or "none"
    print(f"\n{len(found) - len(missed)} of {len(found)} found; not found: {told}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
