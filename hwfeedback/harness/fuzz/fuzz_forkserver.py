"""Requests to the fork server: settings that a sandbox can be made of, an answer, or the end of
the connection; never the end of the server.
"""

from __future__ import annotations

import json
import pathlib
import socket
from typing import Any

import hostile

from kwharness.base import protocol
from kwharness.process import forkserver, spawn_request, worker_start
from kwharness.process.messages import Spawn

_MESSAGES = pathlib.Path(__file__).parents[2] / "testdata" / "protocol"


class _Server(forkserver.Server):
    """One that forks nothing."""

    def __init__(self) -> None:
        self.children: dict[int, Any] = {}
        self.connections: dict[int, Any] = {}
        self.spawned = 0

    def _spawn(self, connection: Any, asked: Spawn, fds: list[int]) -> None:
        settings = spawn_request.wanted(asked)
        assert settings.profile in worker_start.MODULES and settings.mode in ("strict", "weak")
        assert all(isinstance(p, str) for p in settings.read_only)
        assert all(type(v) is int and v >= 0 for v in settings.limits.to_json().values())
        for name in settings.preimport:
            if name not in spawn_request.PREIMPORTS:
                raise ValueError(f"unknown preimport {name!r:.40}")
        self.spawned += 1


def seeds() -> list[bytes]:
    settings = {
        "mode": "weak",
        "threads": 2,
        "read_only": ["/x"],
        "preimport": ["compile"],
        "limits": {"memory_bytes": 1 << 30, "cpu_s": 5},
    }
    requests = [
        {"type": "spawn", "id": 1, "role": "candidate", "settings": settings},
        {"type": "spawn", "id": [], "role": [], "settings": []},
        {"type": "kill", "id": {}},
        {"type": "log", "id": 7},
        {"type": "ping", "id": 8},
    ]
    kept = [p.read_bytes() for p in sorted(_MESSAGES.glob("*.json"))]
    return [*(json.dumps({"v": 1, **r}).encode() for r in requests), *kept]


def one(data: bytes) -> None:
    server = _Server()
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.setblocking(False)
    connection = forkserver.Connection(protocol.Channel(ours))
    reader = protocol.Channel(peer)
    try:
        try:
            msg = protocol.decode(data)
            server._handle(connection, msg, [])
        except protocol.ProtocolError as e:
            assert len(str(e)) < 400, e
            return
        while reader.pending():
            answer, _ = reader.recv(1)
            assert answer["type"] in ("failed", "log", "pong") and answer["id"] == msg["id"]
            if answer["type"] == "failed":
                assert answer["message"] and len(answer["message"]) < 400
            hostile.sendable(answer)
    finally:
        connection.channel.close()
        reader.close()
