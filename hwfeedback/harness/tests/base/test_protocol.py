from __future__ import annotations

import json
import os
import pathlib
import socket
import threading

import pytest

from kwharness.base import paths, protocol
from kwharness.base.protocol import Channel, Closed, ProtocolError, Timeout

SCHEMA = pathlib.Path(protocol.__file__).with_name("protocol.schema.json")
GOLDEN = sorted((pathlib.Path(paths.ROOT).parent / "testdata" / "protocol").glob("*.json"))
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}


def fits(value, schema, root) -> bool:
    """The part of JSON Schema that protocol.schema.json uses."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[k]) for k in kinds):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        return False
    if "not" in schema and fits(value, schema["not"], root):
        return False
    if "oneOf" in schema and sum(fits(value, s, root) for s in schema["oneOf"]) != 1:
        return False
    if isinstance(value, list):
        return all(fits(v, schema.get("items", {}), root) for v in value)
    if isinstance(value, dict):
        if any(r not in value for r in schema.get("required", ())):
            return False
        return all(
            fits(value[k], s, root) for k, s in schema.get("properties", {}).items() if k in value
        )
    return True


@pytest.fixture
def pair():
    ours, theirs = Channel.pair()
    peer = Channel(theirs)
    yield ours, peer
    ours.close()
    peer.close()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_message(path, pair):
    schema = json.loads(SCHEMA.read_text())
    want = json.loads(path.read_text())
    assert protocol.decode(path.read_bytes()) == want
    assert fits(want, schema, schema), "does not fit the schema"
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(want.get("fds", 0))]
    pair[0].send(want, fds)
    got, received = pair[1].recv(120)
    assert got == want
    assert len(received) == len(fds)
    for fd in (*fds, *received):
        os.close(fd)


def test_every_kind_of_message_has_a_golden_one():
    schema = json.loads(SCHEMA.read_text())
    messages = [json.loads(p.read_text()) for p in GOLDEN]
    for name, kind in schema["$defs"].items():
        assert any(fits(m, kind, schema) for m in messages), name
    # Those that carry the most; what else a request holds depends on its type.
    assert {"parse", "inspect", "evaluate"} <= {m["type"] for m in messages}


def test_the_schema_refuses_what_is_none():
    schema = json.loads(SCHEMA.read_text())
    for path in GOLDEN:
        msg = json.loads(path.read_text())
        assert not fits({**msg, "v": 2}, schema, schema)
        assert not fits({**msg, "type": "unheard of"}, schema, schema)
        if "id" in msg:
            assert not fits({k: v for k, v in msg.items() if k != "id"}, schema, schema)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{}", b'{"v":2}', b'{"v":true}', b'{"v":1,"fds":-1}', b'{"v":1,"fds":65}', b'{"v":1,"fds":"1"}',  # noqa: E501
     b"\xff\xfe", b"[" * 100_000, b'{"v":1'],
)  # fmt: skip
def test_foreign_bytes_are_refused(body, pair):
    sock = pair[0]._sock
    sock.sendall(len(body).to_bytes(4, "big") + body)
    with pytest.raises(ProtocolError):
        pair[1].recv(120)


def test_oversized_frame_is_refused_before_it_is_read(pair):
    pair[0]._sock.sendall((protocol.MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="size"):
        pair[1].recv(120)


def test_descriptors_that_were_not_announced_are_closed(pair):
    body = b'{"v":1}'
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(pair[0]._sock, [len(body).to_bytes(4, "big") + body], [0, 0])
    with pytest.raises(ProtocolError, match="announced"):
        pair[1].recv(120)
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_stay_with_their_frame(pair):
    r, w = os.pipe()
    pair[0].send({"n": 1})
    pair[0].send({"n": 2}, [w])
    pair[0].send({"n": 3})
    counts = [
        (m["n"], len(f))
        for m, f in (pair[1].recv(120) for _ in range(3))
        if not [os.close(x) for x in f if x < 0]
    ]
    assert counts == [(1, 0), (2, 1), (3, 0)]
    os.close(r)
    os.close(w)


def test_a_timeout_keeps_what_has_come(pair):
    frame = protocol.encode({"text": "x" * 100})
    pair[0]._sock.sendall(frame[:50])
    with pytest.raises(Timeout):
        pair[1].recv(0.01)
    pair[0]._sock.sendall(frame[50:])
    assert pair[1].recv(120)[0]["text"] == "x" * 100


def test_end_of_stream(pair):
    pair[0].close()
    with pytest.raises(Closed):
        pair[1].recv(120)
    with pytest.raises(Closed):
        for _ in range(3):
            pair[1].send({"late": True})


def test_large_message_both_ways(pair):
    text = "é" * (5 << 20)
    sender = threading.Thread(target=pair[0].send, args=({"text": text},))
    sender.start()
    assert pair[1].recv(120)[0]["text"] == text
    sender.join()


def test_numbers_that_json_lacks(pair):
    pair[0].send({"nan": float("nan"), "list": [float("inf"), 1.5], "text": "\ud800"})
    msg, _ = pair[1].recv(120)
    assert msg["nan"] is None
    assert msg["list"] == [1.7976931348623157e308, 1.5]
    assert msg["text"] == "?"


def test_a_peer_that_does_not_read(pair):
    with pytest.raises(Timeout):
        pair[0].send({"text": "x" * (8 << 20)}, timeout=0.05)
