"""A stage of two processes that loses one: it ends by itself, says so, and goes on later to the
same bits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from doubles import Toy, of, serving, tiny_policy
from test_checkpoint import hashed, stage, start


def two(command: list[str]) -> list[str]:
    """Returns the command of a stage for two processes."""
    how = ["-m", "rl.workers", "--standalone", "--nproc-per-node", "2"]
    return [sys.executable, *how, *command[1:]]


def worker(agent: int, rank: int) -> int:
    """Returns the process id of a worker."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for pid in map(int, children):
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            return pid
    raise AssertionError(f"no worker of rank {rank} among {children}")


def test_a_worker_that_dies_ends_the_others_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    tiny_policy(tmp_path / "base", 8_000)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    with serving(Toy(2)) as url:
        command, out = stage(tmp_path / "whole", url)
        with start(two(command)) as whole:
            told, _ = whole.communicate()
        assert whole.returncode == 0, told
        expected = hashed(out)
    with serving(Toy(2)) as url:
        command, out = stage(tmp_path / "killed", url)
        lines = []
        with start(two(command)) as first:
            assert first.stdout is not None
            for line in first.stdout:
                lines.append(json.loads(line))
                if lines[-1].get("step") == 3:
                    os.kill(worker(first.pid, 1), signal.SIGKILL)
        assert first.returncode == 1
        [error] = of(lines, "error")
        assert error["kind"] == "Abandoned"
        assert "another of the stage's 2 processes has ended" in error["reason"]
        with start(two(command)) as second:
            told = second.communicate()[0]
        assert second.returncode == 0, told
    assert any("going on after step 2" in line for line in told.splitlines())
    assert hashed(out) == expected
