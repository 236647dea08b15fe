"""Workers and forked programs end with who started them, also where that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl import stage, workers

PACKAGE = Path(workers.__file__).parents[1]


def python(*args: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


# Starts two workers in sessions of their own, as torchrun does.
LIKE_TORCHRUN = f"""
import os, subprocess, sys
os.environ["{workers.AGENT}"] = str(os.getpid())
command = [sys.executable, sys.argv[-1]]
for p in [subprocess.Popen(command, start_new_session=True) for _ in range(2)]:
    p.wait()
"""


@pytest.mark.parametrize(
    "command",
    [
        ["-c", LIKE_TORCHRUN],
        ["-m", "rl.workers", "--standalone", "--nproc-per-node", "2"],
    ],
    ids=["like", "torchrun"],
)
def test_workers_end_with_their_agent(tmp_path: Path, command: list[str]) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, signal\nfrom rl import workers\n"
        "workers.end_with_agent()\nos.write(1, b'%d\\n' % os.getpid())\nsignal.pause()\n"
    )
    with python(*command, str(worker)) as agent:
        assert agent.stdout is not None
        pids = [int(agent.stdout.readline()) for _ in range(2)]
        agent.send_signal(signal.SIGKILL)
        try:
            # The workers have the pipe, too: it ends when they have.
            assert agent.communicate(timeout=300)[0] == ""
        except subprocess.TimeoutExpired:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise


def test_who_comes_too_late_ends() -> None:
    alive = f"from rl import workers; workers.end_with({os.getpid()}); print('goes on')"
    late = "from rl import workers; workers.end_with(1 << 30); print('goes on')"
    for code, said, status in ((alive, "goes on\n", 0), (late, "", 1)):
        with python("-c", code) as process:
            assert process.communicate(timeout=300)[0] == said
        assert process.returncode == status


def test_stages_are_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing that a stage does, before it reads settings."""
    asked: list[int] = []
    monkeypatch.setattr(workers, "end_with", asked.append)
    monkeypatch.setenv(workers.AGENT, "4711")
    monkeypatch.setattr(sys, "argv", ["rl.stage", "--config", str(tmp_path / "none.json")])
    out = sys.stdout
    try:
        assert stage.main(dict, lambda *_: {}) == 2
    finally:
        sys.stdout = out
    assert asked == [4711]
