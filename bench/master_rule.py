"""Prints whether honest forms of references pass as candidates: eager, and what torch.compile makes
of them in two modes. The folder of references is given by path: KernelBench's level 1, say.

Nothing is timed, so several processes may share the device (``--jobs``). Rows are appended to a
file as they are reached: a run may be made in parts, and what is in the file is not done again,
unless it was an error. Exit code 75 says that more is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
]

from judging import Judge  # noqa: E402
from test_master_rule import EAGER, Compiled  # noqa: E402

import evaluation  # noqa: E402
from inspection import Invalid  # noqa: E402
from verify import Failed, Verification, calibrate  # noqa: E402

COMPILE_S = 300.0
MODES = ("compile", "max-autotune-no-cudagraphs")


def row_of(judge: Judge, path: pathlib.Path, level: str, modes: list[str]) -> dict[str, Any]:
    """Judges one reference's honest forms. What is no verdict is an ``error``."""
    begun = time.perf_counter()
    text = path.read_text()
    row: dict[str, Any] = {"name": path.stem, "level": level, "forms": {}}
    try:
        task = judge.task(text)
        row["flags"] = task["flags"]
        request = judge.request(text, text + EAGER, level, {"time": False, "require_custom": False})
        request |= {"sandbox": "weak", "cold": False, "threads": 4}
        reference = evaluation.Evaluation(judge.server, request).reference(
            compiles=True, timeout=COMPILE_S
        )
        try:
            calibration = calibrate(reference)
        finally:
            reference.kill()
        request["known"] = {"calibration": calibration.to_json()}
        v = evaluation.evaluate(judge.server, request)["verdict"]
        row["forms"]["eager"] = v["reason"] if v["status"] not in ("correct", "certified") else ""
        families = v["correctness"]["families"]
        row["families"] = len(families)
        row["advisory"] = {f["name"]: f.get("note", "") for f in families if not f["gates"]}
        for mode in modes:
            row["forms"][mode] = compiled(judge, request, calibration, level, mode)
    except Invalid as e:
        row["error"] = f"invalid: {e}"
    except Exception as e:  # the others are judged all the same
        row["error"] = f"{type(e).__name__}: {e}"[:300]
    row["seconds"] = round(time.perf_counter() - begun, 1)
    return row


def compiled(judge: Judge, request: dict[str, Any], calibration: Any, level: str, mode: str) -> str:
    """Returns why a compiled form fails, "" where it passes."""
    clients = []
    try:
        for _ in range(2):
            work = evaluation.Evaluation(judge.server, request)
            clients.append(work.reference(compiles=True, timeout=COMPILE_S))
        reference, candidate = clients
        verification = Verification(reference, calibration, level)
        verification.prepare()
        candidate.set_state(verification.state)
        verification.run(Compiled(candidate, mode))  # type: ignore[arg-type]
        return ""
    except Failed as e:
        return str(e)
    finally:
        for client in clients:
            client.kill()


def told(rows: list[dict[str, Any]], asked: int) -> None:
    """Prints what fails, and what is advisory, and how many pass."""
    forms: dict[str, list[str]] = {}
    for row in rows:
        for form, why in row["forms"].items():
            forms.setdefault(form, []).append(why)
            if why:
                print(f"{row['name']}: {form} fails: {why}")
        if "error" in row:
            print(f"{row['name']}: {row['error']}")
    print(f"| form | references | pass |\n|---|---:|---:|\n| asked for | {asked} | |")
    for form, said in forms.items():
        print(f"| {form} | {len(said)} | {said.count('')} |")
    advisory: dict[str, list[str]] = {}
    for row in rows:
        for family in row.get("advisory", {}):
            advisory.setdefault(family, []).append(row["name"])
    for family, names in sorted(advisory.items(), key=lambda item: -len(item[1])):
        print(f"advisory: {family} on {len(names)}: {', '.join(names[:6])}")
    print(f"{sum(r['seconds'] for r in rows):.0f} s of work")


def done(path: pathlib.Path, level: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return list({r["name"]: r for r in rows if r["level"] == level}.values())  # the last of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a file to append to")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--level", choices=["quick", "certify"], default="quick")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=540.0, help="then no reference is begun")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    paths = sorted(p for p in args.folder.rglob("*.py") if "class Model(" in p.read_text())
    if not paths:
        sys.exit(f"{args.folder} has no reference")
    if args.part is None:
        again = [sys.executable, __file__, *sys.argv[1:]]
        parts = [subprocess.Popen([*again, "--part", str(i)]) for i in range(args.jobs)]
        for p in parts:
            p.wait()
        rows = done(args.results, args.level)
        told(rows, len(paths))
        sys.exit(0 if len(rows) >= len(paths) else os.EX_TEMPFAIL)
    rows = done(args.results, args.level)
    known = {r["name"] for r in rows if r.get("error", "invalid").startswith("invalid")}
    place = None
    if args.device == "cuda":
        from test_cuda import SEES

        place = {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]}
    with tempfile.TemporaryDirectory() as cache, contextlib.closing(Judge(cache, place)) as judge:
        for path in [p for p in paths if p.stem not in known][args.part :: args.jobs]:
            if time.monotonic() > end:
                break
            row = row_of(judge, path, args.level, args.modes)
            with args.results.open("a") as f:
                f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
