"""Looks from outside at who works in a process."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import waiting

from kwharness.attribution import stack_samples
from kwharness.attribution.stack_samples import Sampler, Seen
from kwharness.base import stats
from kwharness.timing.stopped import Stopped


@contextmanager
def busy(work: Callable[[], object], threads: int = 1) -> Iterator[int]:
    """A process that does nothing else by now. Gives its number."""
    ready, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # which is PyTorch at work too
        for _ in range(threads - 1):
            threading.Thread(target=forever, args=(work,), daemon=True).start()
        os.write(says, b"1")
        forever(work)
    os.close(says)
    try:
        begun, _, _ = select.select([ready], [], [], waiting.WAIT_S)
        assert begun and os.read(ready, 1), "the process that is looked at does not begin"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def forever(work: Callable[[], object]) -> None:
    while True:
        work()


def seen_of(
    work: Callable[[], object], looks: int = 60, threads: int = 1, most: int | None = None
) -> Seen:
    """What so many looks show, of which one at who has no core just then is none; ``most``: how
    often is looked then, too.
    """
    found = Seen()
    with busy(work, threads) as pid:
        sampler, process = Sampler(pid, found), Stopped(pid)
        end = time.monotonic() + waiting.WAIT_S
        for n in itertools.count():
            if found.looks >= looks or n == most:
                break
            assert time.monotonic() < end, f"{found.looks} of {looks} looks, after {n} tries"
            time.sleep(0.002)
            process.stop()
            sampler.look()
            process.go_on()
    return found


def softmax() -> object:
    return torch.softmax(X, -1)


X = torch.randn(512, 1024)


@pytest.mark.alone
def test_pytorch_at_work_is_seen() -> None:
    found = seen_of(softmax)
    assert found.looks == 60 and len(found.pytorch) > 0.8 * found.looks
    for traced, ends in ((0.0, True), (0.1, True), (0.3, False)):
        found.traced = traced
        assert found.too_much([]) == ends, "the list of operators has it"


@pytest.mark.alone
def test_whoever_computes_by_itself_is_not_pytorch() -> None:
    found = seen_of(lambda: sum(range(10_000)))
    assert found.looks == 60 and not found.pytorch
    assert not found.too_much([])


@pytest.mark.alone
def test_threads_that_only_wait_are_not_counted() -> None:
    assert seen_of(lambda: time.sleep(1), looks=10, threads=2, most=50).looks < 10


@pytest.mark.alone
def test_many_threads_are_one_look() -> None:
    found = seen_of(softmax, threads=4)
    assert found.looks == 60 and len(found.pytorch) <= 60
    # With fewer cores than threads, looks may meet them between two parts.
    assert len(found.pytorch) > 30


@pytest.mark.alone
def test_a_process_that_is_gone_shows_nothing() -> None:
    with busy(lambda: time.sleep(1)) as pid:
        pass
    found = Seen()
    Sampler(pid, found).look()
    assert found == Seen()


def test_who_calls_vector_functions_is_not_accused_of_them(tmp_path: Path) -> None:
    library = seen_of(softmax, looks=1).library
    (start, end), *_ = stack_samples._free(library)
    inside, beside = Seen(60, [start, end - 1] * 30, library), Seen(60, [0x10] * 60, library)
    calls, other = tmp_path / "calls.so", tmp_path / "other.so"
    calls.write_bytes(b"\0Sleef_expf8_u10\0")
    other.write_bytes(b"\0expf\0")
    assert inside.too_much([str(other)]) and beside.too_much([str(other)])
    assert not inside.too_much([str(other), str(calls)])
    assert beside.too_much([str(calls)])


@pytest.mark.parametrize(
    ("hits", "looks", "traced", "unsure", "too_much"),
    [
        (0, 0, 0.0, True, False),
        (0, 2, 0.0, True, False),
        (0, 12, 0.0, False, False),
        (12, 12, 0.0, False, True),
        (10, 10, 0.0, True, False),
        (65, 72, 0.0, False, True),
        (48, 70, 0.0, True, False),
        (35, 70, 0.0, True, False),
        (20, 70, 0.0, False, False),
        (65, 72, 0.2, True, False),  # of what was listed four times as much is 80 %
        (72, 72, 0.2, False, True),
        (72, 72, 0.3, False, False),
    ],
)
def test_more_looks_may_tell(
    hits: int, looks: int, traced: float, unsure: bool, too_much: bool
) -> None:
    seen = Seen(looks, [0] * hits, traced=traced)
    assert (seen.unsure(), seen.too_much([])) == (unsure, too_much)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (10, 10), (7, 10), (60, 100)])
def test_wilsons_interval(hits: int, n: int) -> None:
    low = stats.wilson_low(hits, n, 1.96)
    assert 0 <= low <= hits / n
    assert stats.wilson_low(hits, n, 3.3) <= low
    # A share that is so low is so many deviations away.
    assert hits / n - low == pytest.approx(1.96 * (low * (1 - low) / n) ** 0.5)


def test_no_trial_has_no_share() -> None:
    with pytest.raises(ValueError, match="no trials"):
        stats.wilson_low(0, 0, 1.0)
