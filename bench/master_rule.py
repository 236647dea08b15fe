"""Prints whether honest forms of references pass as candidates: eager, and what torch.compile makes
of them in two modes. The folder of references is given by path: KernelBench's level 1, say.

Nothing is timed, so several processes may share the device (``--jobs``), as far as its memory goes,
and others another device with the same file. Rows are appended to it as they are reached: a run may
be made in parts, and what is in the file is not done again, unless it was an error. Exit code 75
says that more is left.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import IO, Any

import torch

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT / "hwfeedback" / "harness"),
    str(ROOT / "hwfeedback" / "harness" / "tests"),
    *map(str, (ROOT / "hwfeedback" / "harness" / "tests").glob("*/")),
]

from evaluating import Evaluator, evaluate, processes_of  # noqa: E402
from test_master_rule import EAGER, Compiled  # noqa: E402

from kwharness.base.calibration import Calibration  # noqa: E402
from kwharness.base.requests import Workplace  # noqa: E402
from kwharness.clients.errors import WorkerLate  # noqa: E402
from kwharness.clients.reference_client import ReferenceClient  # noqa: E402
from kwharness.machine import device as devices  # noqa: E402
from kwharness.referee.context import device_of  # noqa: E402
from kwharness.task.inspect_task import Invalid  # noqa: E402
from kwharness.verify import verify  # noqa: E402
from kwharness.verify.calibrate import calibrate  # noqa: E402
from kwharness.verify.findings import Failed  # noqa: E402
from kwharness.verify.verification import Verification  # noqa: E402

COMPILE_S = 300.0
MODES = ("compile", "max-autotune-no-cudagraphs")


def row_of(
    evaluator: Evaluator, path: pathlib.Path, level: str, modes: list[str]
) -> dict[str, Any]:
    """Judges one reference's honest forms. What is no verdict is an ``error``, and a form that is
    not compiled in time is ``late``.
    """
    begun = time.perf_counter()
    text = path.read_text()
    row: dict[str, Any] = {"name": path.stem, "level": level, "forms": {}, "late": []}
    try:
        task = evaluator.task(text)
        row["flags"] = task["flags"]
        request = evaluator.request(
            text, text + EAGER, level, {"time": False, "require_custom": False}
        )
        request |= {"sandbox": "weak", "cold": False, "threads": 4}
        with contextlib.ExitStack() as ends:
            reference = started(evaluator, request, ends)
            calibration = calibrate(reference)
            for mode in modes:
                with contextlib.ExitStack() as over:
                    form = Compiled(started(evaluator, request, over), mode)
                    try:
                        row["forms"][mode] = compiled(reference, form, calibration, level)
                    except WorkerLate:
                        row["late"].append(mode)
        request["known"] = {"calibration": calibration.to_json()}
        v = evaluate(evaluator.server, request)["verdict"]
        row["forms"]["eager"] = v["reason"] if v["status"] not in ("correct", "certified") else ""
        families = v["correctness"]["families"]
        row["families"] = len(families)
        row["advisory"] = {f["name"]: f.get("note", "") for f in families if not f["gates"]}
    except Invalid as e:
        row["error"] = f"invalid: {e}"
    except Exception as e:  # the others are judged all the same
        row["error"] = f"{type(e).__name__}: {e}"[:300]
    row["seconds"] = round(time.perf_counter() - begun, 1)
    row["at"] = time.time()
    return row


def started(
    evaluator: Evaluator, request: dict[str, Any], ends: contextlib.ExitStack
) -> ReferenceClient:
    """Returns a process that has loaded the reference and may compile it."""
    client = processes_of(evaluator.server, request).reference(compiles=True, timeout=COMPILE_S)
    ends.callback(client.kill)
    return client


def compiled(
    reference: ReferenceClient, form: Compiled, calibration: Calibration, level: str
) -> str:
    """Returns why a compiled form fails, "" where it passes."""
    verification = Verification(reference, calibration, level)
    original = reference.state()
    verification.prepare()
    form.reference.set_state(verification.state)
    try:
        verify.run(verification, form)  # type: ignore[arg-type]
    except Failed as e:
        return str(e)
    finally:
        reference.set_state(original)
    return ""


class Shares:
    """The device's memory in shares that processes take and give back: files that are locked."""

    COUNT = 32
    SPARING = 14  # times what a call has, where memory is spared: device.SPARING_PEAK, and more

    def __init__(self, folder: pathlib.Path, where: devices.Device) -> None:
        self._device = where
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._paths = [folder / f"share-{where.kind}{name}-{i}" for i in range(self.COUNT)]

    def take(self, call_bytes: int) -> contextlib.ExitStack | None:
        """Returns what holds enough shares for such a task until it is closed, None while others
        have them.
        """
        total = self._device.room()[1]
        sparing = devices.PEAK * call_bytes > total
        needs = (self.SPARING if sparing else devices.PEAK) * call_bytes + (3 << 30)  # contexts
        count = min(-(-needs * self.COUNT // total), self.COUNT)
        with contextlib.ExitStack() as taken:
            for path in self._paths:
                held = locked(path)
                if held is not None:
                    taken.enter_context(held)
                    count -= 1
                if not count:
                    return taken.pop_all()
        return None


def locked(path: pathlib.Path) -> IO[str] | None:
    """Returns a file that this process alone has locked while it is open, None where another has
    it.
    """
    f = path.open("w")
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        f.close()
        return None
    return f


def call_bytes(paths: list[pathlib.Path]) -> dict[str, int]:
    """Returns how much a call of each reference has of inputs and outputs. Runs its code, in this
    process, on tensors without content; where that does not do, outputs count as inputs.
    """
    sizes = {}
    for path in paths:
        made: dict[str, Any] = {}
        seen: list[Any] = []
        with contextlib.suppress(Exception), torch.device("meta"), torch.no_grad():
            exec(compile(path.read_text(), str(path), "exec"), made)
            inputs = made["get_inputs"]()
            seen = 2 * inputs
            seen = [*inputs, made["Model"](*made["get_init_inputs"]())(*inputs)]
        tensors = [t for t in torch.utils._pytree.tree_leaves(seen) if isinstance(t, torch.Tensor)]
        sizes[path.stem] = sum(t.numel() * t.element_size() for t in tensors)
    return sizes


def rows_of(evaluator: Evaluator, paths: list[pathlib.Path], args: argparse.Namespace) -> None:
    """Judges what is not in the file yet, nor at work in a process beside this one."""
    end = time.monotonic() + args.seconds
    folder = args.results.with_suffix(".locks")
    folder.mkdir(exist_ok=True)
    shares = Shares(folder, device_of(Workplace.from_json(evaluator.place)))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
        sizes = another.submit(call_bytes, paths).result()
    while time.monotonic() < end:
        waiting = False
        for path in paths:
            if time.monotonic() > end:
                break
            mine = locked(folder / path.stem)
            if mine is None:
                continue
            with mine:
                # Read anew each time: another may have ended it.
                if path.stem in known(args):
                    continue
                taken = shares.take(sizes[path.stem])
                if taken is None:
                    waiting = True
                    continue
                with taken:
                    row = row_of(evaluator, path, args.level, args.modes)
                with args.results.open("a") as f:
                    f.write(json.dumps(row) + "\n")
        if not waiting:
            break
        time.sleep(1.0)


def told(rows: list[dict[str, Any]], asked: int) -> None:
    """Prints what fails, and what is advisory, and how many pass."""
    forms: dict[str, list[str]] = {}
    for row in rows:
        for form, why in row["forms"].items():
            forms.setdefault(form, []).append(why)
            if why:
                print(f"{row['name']}: {form} fails: {why}")
        for form in row.get("late", []):
            print(f"{row['name']}: {form} took over {COMPILE_S:g} s to compile: not judged")
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
        print(f"advisory: {family} on {len(names)}: {', '.join(names)}")
    print(f"{sum(r['seconds'] for r in rows):.0f} s of work")


def done(path: pathlib.Path, level: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return list({r["name"]: r for r in rows if r["level"] == level}.values())  # the last of each


def known(args: argparse.Namespace) -> set[str]:
    """Returns the names of those that need not be judged: errors of earlier runs are."""
    rows = done(args.results, args.level)
    return {
        r["name"]
        for r in rows
        if r.get("at", 0.0) >= args.since or r.get("error", "invalid").startswith("invalid")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a file to append to")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--level", choices=["quick", "certify"], default="quick")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--since", type=float, help=argparse.SUPPRESS)  # one of the jobs
    parser.add_argument("--seconds", type=float, default=540.0, help="then no reference is begun")
    args = parser.parse_args()
    paths = sorted(p for p in args.folder.rglob("*.py") if "class Model(" in p.read_text())
    if not paths:
        sys.exit(f"{args.folder} has no reference")
    # Large and small ones beside each other, in an order that is the same each time.
    random.Random(0).shuffle(paths)
    if args.since is None:
        again = [sys.executable, __file__, *sys.argv[1:], "--since", str(time.time())]
        for p in [subprocess.Popen(again) for _ in range(args.jobs)]:
            p.wait()
        rows = done(args.results, args.level)
        told(rows, len(paths))
        sys.exit(0 if len(rows) >= len(paths) else os.EX_TEMPFAIL)
    place = None
    if args.device == "cuda":
        from test_cuda_driver import SEES

        place = {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]}
    with (
        tempfile.TemporaryDirectory() as cache,
        contextlib.closing(Evaluator(cache, place)) as evaluator,
    ):
        rows_of(evaluator, paths, args)


if __name__ == "__main__":
    main()
