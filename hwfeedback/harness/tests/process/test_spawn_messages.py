"""What a fork server is asked, and what it tells, as dataclasses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from kwharness.base.configs import BY_ROLE, BuilderConfig, Place
from kwharness.base.records import ProtocolError
from kwharness.process import messages, policy, spawn_request, worker_start
from kwharness.process.messages import Spawn

FIXTURES = pathlib.Path(__file__).parents[3] / "testdata" / "protocol"
KINDS: dict[str, type[messages.Typed]] = {
    "exited": messages.Exited,
    "exited_by_signal": messages.Exited,
    "failed": messages.Failed,
    "kill": messages.Kill,
    "left": messages.Left,
    "log": messages.Log,
    "log_request": messages.ReadLog,
    "ping": messages.Ping,
    "pong": messages.Pong,
    "ready": messages.Ready,
    "rest": messages.Rest,
    "spawn_referee": messages.Spawn,
    "spawn_worker": messages.Spawn,
    "spawned": messages.Spawned,
    "start": messages.Start,
    "taken": messages.Taken,
}


@pytest.mark.parametrize("name", KINDS)
def test_they_are_read_and_written_as_go_has_them(name: str) -> None:
    given = json.loads((FIXTURES / f"{name}.json").read_text())
    del given["v"]
    given.pop("fds", None)
    assert within(given, KINDS[name].from_json(given).to_json())


def within(part: Any, whole: Any) -> bool:
    """Whether objects have what others have, and may have more."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(k in whole and within(v, whole[k]) for k, v in part.items())
    return bool(part == whole)


HOSTILE: list[dict[str, Any]] = [
    {"settings": {"threads": -1}},
    {"settings": {"threads": 1.5}},
    {"settings": {"read_only": "/"}},
    {"settings": {"read_only": [1]}},
    {"settings": {"limits": [1]}},
    {"settings": {"limits": {"cpu_s": True}}},
    {"settings": {"limits": {"memory_bytes": 1 << 62}}},
    {"settings": {"gpu": "0"}},
    {"settings": {"tools": 1}},
    {"settings": {"preimport": {}}},
    {"settings": 1},
    {"config": 1},
    {"role": []},
    {"id": None},
    {"id": True},
]


@pytest.mark.parametrize("wrong", HOSTILE)
def test_no_spawn_has_another_type(wrong: dict[str, Any]) -> None:
    right = {"type": "spawn", "id": 1, "role": "candidate"}
    assert spawn_request.wanted(Spawn.from_json(right)).profile == "candidate"
    with pytest.raises(ProtocolError):
        Spawn.from_json(right | wrong)


def test_what_a_spawn_leaves_open_is_strict() -> None:
    given = policy.Settings(mode="none", threads=0, gpu_uuid="x" * 100)
    wanted = spawn_request.wanted(Spawn(1, "candidate", given))
    assert (wanted.mode, wanted.threads, len(wanted.gpu_uuid)) == ("strict", 1, 80)
    assert not wanted.tools and wanted.limits == policy.Limits()
    with pytest.raises(ValueError, match="unknown role"):
        spawn_request.wanted(Spawn(1, "root", given))


def test_a_row_for_each_role() -> None:
    assert BY_ROLE.keys() == policy.PROFILES.keys() == worker_start.MODULES.keys() - {"referee"}
    asked = BuilderConfig("weak", 2, Place("cuda", 0, "GPU-1"), ["/x"], light="/y", warm=True)
    assert BuilderConfig.from_json(asked.to_json()).to_json() == asked.to_json()
