from __future__ import annotations

import os
import pathlib
import time

import pytest
import waiting

from kwharness.machine import perf_counters
from kwharness.timing import process_use


@pytest.mark.alone
def test_what_a_process_does_is_counted_and_nothing_before_or_after() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        while os.read(read, 1):
            for _ in range(4000):
                bytearray(1 << 18)  # maps and unmaps: pages are touched anew
        os._exit(0)
    os.close(read)
    counting = perf_counters.Counters([pid])
    try:
        if not counting.read():
            pytest.skip("perf_event_open gives nothing here")
        settle(pid)
        with counting:
            pass
        assert all(v == 0 for v in counting.read().values())
        with counting:
            os.write(write, b"x")
            settle(pid)
        counted = counting.read()
        assert counted.get("context_switches", 1) >= 1 and counted.get("page_faults", 1) >= 1
        os.write(write, b"x")
        settle(pid)
        assert counting.read() == counted
        if "instructions" in counted:
            assert counted["instructions"] > 100_000
    finally:
        counting.close()
        os.close(write)
        os.waitpid(pid, 0)


def settle(pid: int) -> None:
    """Waits until a process sleeps again: it does so only where it reads, and whoever writes to it
    wakes it at once.
    """
    stat, used = pathlib.Path(f"/proc/{pid}/stat"), -1

    def rests() -> bool:
        nonlocal used
        before, used = used, sum(u.cpu_ns for u in process_use.usage([pid]).values())
        time.sleep(0.01)
        return used == before  # it has left its core

    waiting.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "a process sleeps")
    waiting.until(rests, "a process uses no core")


def test_what_cannot_be_opened_is_absent() -> None:
    counting = perf_counters.Counters([1 << 22 | 1])  # above the largest pid
    assert counting.read() == {}
    counting.close()


def test_metrics() -> None:
    counts = {
        "cycles": 2e6,
        "instructions": 4e6,
        "cache_references": 2e5,
        "cache_misses": 1e5,
        "branch_misses": 4e3,
        "page_faults": 20.0,
        "context_switches": 2.0,
    }
    found = perf_counters.metrics({name: count / 2 for name, count in counts.items()}, 0.1)
    assert found["instructions_per_cycle"] == pytest.approx(2.0)
    assert found["cache_miss_share"] == pytest.approx(0.5)
    assert found["missed_gbs"] == pytest.approx(64 * 5e4 / 1e5)
    assert found["branch_misses_per_1000"] == pytest.approx(1.0)
    assert found["page_faults"] == 10.0 and found["context_switches"] == 1.0
    assert perf_counters.metrics({"page_faults": 3.0}, 1.0) == {"page_faults": 3.0}
