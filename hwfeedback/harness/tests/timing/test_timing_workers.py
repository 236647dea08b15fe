"""Timing through the fork server and the real reference worker, its OpenMP pool included."""

from __future__ import annotations

from typing import Any

import forked
import pytest
import torch
from evaluating import LLC

from kwharness.base.configs import ReferenceConfig
from kwharness.process import fork_client
from kwharness.timing import input_pool, process_use, timing, window_base, window_session

pytestmark = pytest.mark.alone

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2.0

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
"""


def ask(worker: fork_client.Worker, msg: dict[str, Any]) -> None:
    worker.channel.send(msg)
    answer, _ = worker.channel.recv(120)
    assert answer.get("ok"), answer


def load(worker: fork_client.Worker, threads: int) -> None:
    ask(worker, {"op": "import", "source": SOURCE, "threads": threads})
    ask(worker, {"op": "init_inputs"})
    ask(worker, {"op": "construct", "seed": 0})


def test_eager_against_eager(server: fork_client.ForkServer) -> None:
    def spawn(_: str = "") -> fork_client.Worker:
        worker = server.spawn(ReferenceConfig(sandbox="weak"))
        load(worker, threads=1)
        ask(worker, {"op": "timed", "tree": {"list": [{"t": 0}]}, "output_tree": {"t": 0}})
        return worker

    draw = forked.draw((512, 1024))
    timer = timing.Timing(
        draw=draw,
        outputs=draw(0),
        check=lambda _, got, want: None if torch.allclose(got[0], want[0]) else "differs",
        spawn_baseline=spawn,
        level="quick",
        threads=1,
        want=["eager"],
        llc_bytes=LLC,
    )
    timer.prepare()
    timed = timer.measure(spawn)
    assert timed.wrong is None and timed.speedup is not None
    assert timed.speedup.low < timed.speedup.high
    expected = timer.contents.expected(range(1))[0][0]
    assert torch.allclose(expected, torch.tanh(draw(0)[0]) * 2.0)
    assert set(timed.records) == {"eager"}


def test_a_worker_of_the_server_is_seen_from_outside(server: fork_client.ForkServer) -> None:
    worker = server.spawn(ReferenceConfig(sandbox="weak"))
    try:
        before = process_use.usage(process_use.tree(worker.pid))
        load(worker, threads=1)
        after = process_use.usage(process_use.tree(worker.pid))
        assert sum(u.cpu_ns for u in after.values()) > sum(u.cpu_ns for u in before.values())
    finally:
        worker.kill()


def test_timed_calls_touch_no_new_memory(server: fork_client.ForkServer) -> None:
    # Outputs that were not freed once made baselines three times too slow, and nobody else.
    worker = server.spawn(ReferenceConfig(sandbox="weak"))
    try:
        load(worker, threads=1)
        ask(worker, {"op": "timed", "tree": {"list": [{"t": 0}]}, "output_tree": {"t": 0}})
        draw = forked.draw((512, 1024))
        contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
        contents.grow(4)
        session = window_session.Session(worker, contents, 4, window_session.Options(mode="eager"))
        for _ in range(3):
            contents.new_process()
            session.run("fresh", contents.take(4))
        before = resident(worker.pid)
        for _ in range(20):
            contents.new_process()
            session.run("fresh", contents.take(4))
        assert resident(worker.pid) - before < 2 << 20, "eighty outputs of 2 MiB were made"
        session.close()
    finally:
        worker.kill()


def resident(pid: int) -> int:
    """Returns the bytes of private memory of a process."""
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")
