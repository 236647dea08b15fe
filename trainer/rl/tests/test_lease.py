"""Nothing of a stage runs on a device while somebody measures on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import Toy, run, serving, tiny_policy
from torch.utils._python_dispatch import TorchDispatchMode

from rl import ppo
from rl.lease import Lease

Interval = tuple[int, int]  # of time.time_ns()


def nothing() -> None:
    """Finishes nothing."""


class Measurer:
    """Who measures, as hwfeedback's lease.go does: alone, and first of those who wait."""

    def __init__(self, folder: Path, device: str) -> None:
        name = device.replace(":", "-")
        self.lock, self.wanted = folder / f"{name}.lock", folder / f"{name}.wanted"
        self.windows: list[Interval] = []

    @contextlib.contextmanager
    def alone(self, seconds: float = 120.0) -> Iterator[None]:
        """Has the device alone in a block. It raises TimeoutError."""
        flags = os.O_RDWR | os.O_CREAT
        with contextlib.ExitStack() as stack:
            lock, waits = os.open(self.lock, flags), os.open(self.wanted, flags)
            stack.callback(os.close, lock)
            end = time.monotonic() + seconds
            fcntl.flock(waits, fcntl.LOCK_SH)
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                os.pwrite(waits, b"\n", 0)
                if time.monotonic() > end:
                    os.close(waits)
                    raise TimeoutError
                time.sleep(0.002)
            os.close(waits)
            yield

    def measure(self, seconds: float) -> None:
        """Notes a window in which nobody else may use the device."""
        with self.alone():
            begin = time.time_ns()
            time.sleep(seconds)
            self.windows.append((begin, time.time_ns()))


def test_who_computes_shares_and_who_measures_does_not(tmp_path: Path) -> None:
    one, two = (Lease(str(tmp_path), "cuda:1", nothing) for _ in range(2))
    measurer = Measurer(tmp_path, "cuda:1")
    one.hold()
    two.hold()
    one.hold()  # twice is once
    for lease in (one, two):
        with pytest.raises(TimeoutError), measurer.alone(0.01):
            pass
        assert lease.is_held
        lease.let_go()
    with measurer.alone(0.5):
        assert not one.is_held
    said = json.loads((tmp_path / "cuda-1.lock").read_text())
    assert said["pid"] == os.getpid() and said["released"] and said["fence"] == 0
    with one.held():
        assert one.is_held
        with one.held():
            pass
        assert one.is_held
    assert not one.is_held


def test_who_waits_goes_first(tmp_path: Path) -> None:
    done: list[str] = []
    lease = Lease(str(tmp_path), "cpu", lambda: done.append("finished"))
    measurer = Measurer(tmp_path, "cpu")
    lease.hold()
    lease.breathe()  # nobody waits
    assert done == []

    def measure() -> None:
        with measurer.alone():
            done.append("measured")

    thread = threading.Thread(target=measure)
    thread.start()
    while not lease.wanted():
        time.sleep(0.001)
    assert done == []
    while len(done) < 2:
        lease.breathe()
    thread.join()
    assert done == ["finished", "measured"] and lease.is_held
    lease.let_go()


def test_without_a_folder_nothing_is_locked(tmp_path: Path) -> None:
    lease = Lease("", "cpu", nothing)
    for use in (lease.hold, lease.breathe, lease.let_go):
        use()
    assert lease.is_held and not lease.wanted()


class Clocked(TorchDispatchMode):
    """Notes when each operator of PyTorch's ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Interval] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.time_ns()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.ran.append((begin, time.time_ns()))


@contextlib.contextmanager
def operators() -> Iterator[list[Interval]]:
    with Clocked() as clocked:
        yield clocked.ran


@contextlib.contextmanager
def kernels() -> Iterator[list[Interval]]:
    """Yields what has, in the end, the intervals of all of this process's on a GPU."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    ran: list[Interval] = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        with record_function(f"at {time.time_ns()}"):
            pass
        yield ran
        torch.cuda.synchronize()
    assert prof.profiler is not None and prof.profiler.kineto_results is not None
    events = prof.profiler.kineto_results.events()
    marks = [e for e in events if e.name().startswith("at ")]
    offset = int(marks[0].name().removeprefix("at ")) - marks[0].start_ns()
    for e in events:
        if e.device_type() == DeviceType.CUDA:
            begin = e.start_ns() + offset
            ran.append((begin, begin + e.duration_ns()))


def trained(folder: Path, device: str, leases: str) -> tuple[list[Interval], list[Interval]]:
    """Trains by PPO beside somebody who measures by themselves, and an environment that measures
    what it is given. Returns the windows, and when something was computed.
    """
    base = tiny_policy(folder / "base")
    (folder / "leases").mkdir()
    gpu = device == "cuda"
    measurer = Measurer(folder / "leases", "cuda:0" if gpu else "cpu")
    toy, over = Toy(2), threading.Event()

    def judged(path: str, _: dict[str, Any]) -> None:
        if path.endswith("/turns"):
            measurer.measure(0.004)

    def person() -> None:
        draw = random.Random(1)
        while not over.wait(draw.random() * 0.04):
            measurer.measure(0.01)

    toy.fail = judged  # type: ignore[assignment]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps({"id": c, "code": c}) for c in "ab"))
    settings = {
        "policy": str(base),
        "out": str(folder / "out"),
        "tasks": str(folder / "tasks.jsonl"),
        "sampling": {"tokens": 12},
        "steps": 1,
        "tasks_per_step": 2,
        "samples_per_task": 2,
        "estimator": {"truncated": "keep"},
        "machine": {"device": device, "threads": 1, "micro_tokens": 64, "leases": leases},
        "saving": {"every": 1, "tensorboard": False},
        "bounds": {"kl_skip": 0, "kl_high": 0},
    }
    thread = threading.Thread(target=person)
    with serving(toy) as url:
        settings["environment"] = {"url": url, "patience": 0.1}
        with kernels() if gpu else operators() as ran:
            thread.start()
            try:
                code, lines = run(ppo.Settings, ppo.run, settings)
            finally:
                over.set()
                thread.join()
    assert code == 0, lines[-1]
    return measurer.windows, ran


def within(windows: list[Interval], ran: list[Interval], slack_ns: int) -> int:
    """Returns how many windows something ran in, by more than the clocks may differ."""
    ran = sorted(ran)
    return sum(
        any(b < end - slack_ns and e > begin + slack_ns for b, e in ran) for begin, end in windows
    )


def device_of(name: str) -> Any:
    there = torch.cuda.is_available()
    absent = pytest.mark.skipif(name == "cuda" and not there, reason="no GPU")
    return pytest.param(name, marks=absent)


@pytest.mark.parametrize("device", [device_of("cpu"), device_of("cuda")])
def test_nothing_runs_while_somebody_measures(tmp_path: Path, device: str) -> None:
    slack = 100_000 if device == "cuda" else 0
    windows, ran = trained(tmp_path, device, str(tmp_path / "leases"))
    assert len(windows) >= 8 and len(ran) > 1000
    assert within(windows, ran, slack) == 0
    print(f"{len(windows)} windows, {len(ran)} pieces of work: none in a window")


@pytest.mark.parametrize("device", [device_of("cuda")])
def test_without_leases_it_would(tmp_path: Path, device: str) -> None:
    windows, ran = trained(tmp_path, device, "")
    found = within(windows, ran, 100_000)
    print(f"{found} of {len(windows)} windows have work in them")
    assert found > 0
