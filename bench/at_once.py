"""Judges a batch of distinct small candidates one after the other, and then as many at once as
``--at-once`` says (``evaluation.at_once``). Prints a table of both and one of the seconds that a
candidate's parts took on average, and fails where their verdicts differ.

Half of the candidates are right, a quarter computes something else, and a quarter does not compile.
Every text is new, so that neither a build nor a verdict is in a cache. The task's calibration and
its baselines are known beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[1]
WRONG = """

Right = ModelNew


class ModelNew(Right):
    def forward(self, *given):
        return 1.01 * super().forward(*given)
"""
KINDS = ("correct", "wrong", "correct", "build_failed")


def text_of(source: str, kind: str, mark: str) -> str:
    """Returns a candidate of a kind that nobody has seen."""
    remark = "this does not compile\n" if kind == "build_failed" else ""
    text = source.replace('r"""', f'r"""// {mark}\n{remark}', 1) + f"\nvariant = '{mark}'\n"
    return text + (WRONG if kind == "wrong" else "")


@dataclass
class Judged:
    """A batch: what each verdict says, the seconds it took, and those of processors."""

    statuses: list[str]
    took_s: float
    used_s: float
    parts: list[dict[str, float]]  # of each verdict, seconds by part

    def part_s(self, name: str) -> float:
        """Returns what a part took on average, over all candidates."""
        return sum(p.get(name, 0.0) for p in self.parts) / len(self.parts)


def judged(args: argparse.Namespace, count: int, at_once: int) -> Judged:
    """Judges a new batch."""
    source = pathlib.Path(args.candidate).read_text()
    environ = os.environ | {
        "KERNELWRIGHT_EVALUATION_AT_ONCE": str(at_once),
        "KERNELWRIGHT_EVALUATION_KEEP_WARM": "0s",  # else its processor time is nobody's child's
    }
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            text = text_of(source, KINDS[i % len(KINDS)], f"{time.time_ns()} {i}")
            (pathlib.Path(folder) / f"{i:04}.py").write_text(text)
        command = [args.bin, "eval", args.reference, "--batch", folder, "--device", args.device]
        command += ["--data-dir", args.data_dir, "--python", args.python, "--json"]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=False)
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        sys.exit(f"eval ended with exit code {run.returncode}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    verdicts = [json.loads(line) for line in run.stdout.splitlines()]
    parts = [v.get("cost_s") or {} for v in verdicts]
    return Judged([v["status"] for v in verdicts], took, used, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", default=str(ROOT / "examples" / "softmax.py"))
    parser.add_argument(
        "--candidate", default=str(ROOT / "examples" / "candidates" / "softmax_native.py")
    )
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    args = parser.parse_args()
    judged(args, 1, 1)
    print("| at once | wall s | processor s | candidates an hour | verdicts |")
    print("|---:|---:|---:|---:|---|")
    found: dict[int, Judged] = {}
    for at_once in (1, args.at_once):
        found[at_once] = done = judged(args, args.count, at_once)
        said = ", ".join(f"{n} {status}" for status, n in Counter(done.statuses).items())
        rate = 3600 * args.count / done.took_s
        print(
            f"| {at_once} | {done.took_s:.1f} | {done.used_s:.1f} | {rate:.0f} | {said} |",
            flush=True,
        )
    print(
        "\n| part, s a candidate |", " | ".join(map(str, found)), "|\n|---|" + "---:|" * len(found)
    )
    for name in dict.fromkeys(n for done in found.values() for p in done.parts for n in p):
        print(f"| {name} |", " | ".join(f"{done.part_s(name):.3f}" for done in found.values()), "|")
    wanted = [KINDS[i % len(KINDS)] for i in range(args.count)]
    for at_once, done in found.items():
        differ = [i for i, s in enumerate(done.statuses) if s != wanted[i]]
        if differ or len(done.statuses) != args.count:
            sys.exit(f"with {at_once} at once these have other verdicts than they should: {differ}")


if __name__ == "__main__":
    main()
