"""Frames: whatever bytes come, in whatever pieces, reading ends with plain messages that keep to
the limits, or with a ProtocolError.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket

from hostile import descriptors

from kwharness.base import protocol

MESSAGES = pathlib.Path(__file__).parents[2] / "testdata" / "protocol"


def seeds() -> list[bytes]:
    frames = [protocol.encode(json.loads(p.read_bytes())) for p in sorted(MESSAGES.glob("*.json"))]
    body = b'{"v":1,"a":"\\ud83d\\ude00 \\ud800","n":1e999}'
    return [
        *(b"\0" + f for f in frames),
        b"\2" + protocol.encode({"a": 1}, 2) + protocol.encode({"b": [2]}),
        b"\1" + protocol.encode({"a": 1}),
        b"\0" + len(body).to_bytes(4, "big") + body,
        b"\0\xff\xff\xff\xff{}",
        b"\0\0\0\0\0",
    ]


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            x
            for v in level
            if isinstance(v, (dict, list))
            for x in (v.values() if isinstance(v, dict) else v)
        ]
    return depth


def one(data: bytes) -> None:
    before = descriptors()
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = protocol.Channel(ours, protocol.MAX_WORKER_FRAME)
    peer.setblocking(False)
    try:
        data = data or b"\0"
        stream = data[1:] or b"\0"
        fds = [0] * (data[0] % 70)
        try:
            if fds:
                socket.send_fds(peer, [stream], fds)
            else:
                peer.sendall(stream)
        except OSError:
            return  # more than a socket holds
        finally:
            peer.close()
        for _ in range(len(stream)):
            try:
                msg, got = channel.recv(5)
            except protocol.ProtocolError as e:
                assert not isinstance(e, protocol.Timeout), "the end was not seen"
                assert len(str(e)) < 400, e
                break
            for fd in got:
                os.close(fd)
            assert type(msg) is dict and len(got) <= protocol.MAX_FDS
            assert _depth(msg) <= protocol.MAX_DEPTH + 1
            json.dumps(msg, ensure_ascii=False).encode()  # all its text is text
            again = protocol.decode(protocol.encode(msg, len(got))[4:])
            # Infinite is what a number too large for a double becomes; it is not sent on.
            assert again == protocol.plain({**msg, "fds": len(got)} if got else _without(msg)), msg
        else:
            raise AssertionError("more messages than bytes")
    finally:
        channel.close()
        assert descriptors() <= before, "a descriptor was left open"


def _without(msg: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in msg.items() if k != "fds"}
