"""How the processes talk: length-prefixed JSON over a Unix stream socket, descriptors beside it.

A frame is four bytes of big-endian length and that many bytes of UTF-8 JSON, one object with ``"v":
1``. Descriptors travel as SCM_RIGHTS with the first byte of a frame, and the object says how many
as ``"fds"``. Nothing is ever pickled: whatever a hostile peer sends, the reader ends with a plain
dict or an exception.
"""

from __future__ import annotations

import array
import json
import math
import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kwharness.base.constants import SHARED
from kwharness.base.records import ProtocolError as ProtocolError

VERSION = SHARED.protocol_version
MAX_FRAME = SHARED.max_frame_bytes
MAX_WORKER_FRAME = 8 << 20  # of a worker's answer: in memory it may be thirty times as large
MAX_DEPTH = 200  # of lists and objects within each other: nobody's recursion ends in what arrives
MAX_FDS = SHARED.max_fds
SEND_TIMEOUT = SHARED.send_timeout_s
GRACE = 1.0  # seconds past a deadline in which what has arrived is still read
_HEADER = 4


class Closed(ProtocolError):
    """The peer is gone."""


class Timeout(ProtocolError):
    """Nothing complete arrived in time. What came of a frame is kept for the next ``recv``."""


def plain(value: Any) -> Any:
    """Returns the value with numbers that JSON lacks replaced: NaN by null, infinities by the
    largest double.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(1.7976931348623157e308, value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def encode(msg: dict[str, Any], fds: int = 0) -> bytes:
    """Returns the frame of a message."""
    whole = {"v": VERSION, **msg}
    if fds:
        whole["fds"] = fds
    else:
        whole.pop("fds", None)
    try:
        try:
            text = json.dumps(whole, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        except ValueError:
            text = json.dumps(
                plain(whole), allow_nan=False, separators=(",", ":"), ensure_ascii=False
            )
        body = text.encode("utf-8", "replace")  # a lone surrogate must not end the conversation
    except (TypeError, ValueError, RecursionError) as e:
        raise ProtocolError(f"message cannot be written as JSON: {e}") from e
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"message of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return len(body).to_bytes(_HEADER, "big") + body


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON's")


_decoder = json.JSONDecoder(parse_constant=_no_number)


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and dicts lie within each other more often than ``depth`` times."""
    level = [value]
    for _ in range(depth):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [x for values in inner for x in values if isinstance(x, (dict, list))]
        if not level:
            return False
    return True


def decode(body: bytes) -> dict[str, Any]:
    """Returns the message in a frame's body. Raises ProtocolError for anything else."""
    try:
        msg = _decoder.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"frame is not JSON: {str(e)[:200]}") from e
    if not isinstance(msg, dict):
        raise ProtocolError("frame is not a JSON object")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper(msg, MAX_DEPTH):
        raise ProtocolError("frame is nested too deeply")
    if b"\\ud" in body.lower():  # half a character, unless its other half follows
        try:
            json.dumps(msg, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as e:
            raise ProtocolError("frame holds text that is no Unicode") from e
    if msg.get("v") != VERSION or type(msg["v"]) is not int:
        raise ProtocolError(f"peer speaks version {msg.get('v')!r:.40}, expected {VERSION}")
    fds = msg.get("fds", 0)
    if not isinstance(fds, int) or isinstance(fds, bool) or not 0 <= fds <= MAX_FDS:
        raise ProtocolError(f"impossible number of descriptors: {fds!r:.40}")
    return msg


class Channel:
    """One end of a conversation, with its socket. One thread sends and one receives at a time."""

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME) -> None:
        """``limit``: the bytes of a frame that may arrive."""
        sock.setblocking(False)
        self._sock = sock
        self._limit = limit
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._flooded = False  # with descriptors: what comes after is of no frame

    @classmethod
    def of_fd(cls, fd: int) -> Channel:
        """Takes over the descriptor of a connected Unix stream socket."""
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd))

    @classmethod
    def pair(cls, limit: int = MAX_FRAME) -> tuple[Channel, socket.socket]:
        """Returns a channel and the socket of its peer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        return cls(ours, limit), theirs

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(
        self, msg: dict[str, Any], fds: Sequence[int] = (), timeout: float | None = SEND_TIMEOUT
    ) -> None:
        """Sends one message. The descriptors stay the caller's. Raises Closed, Timeout,
        ProtocolError.
        """
        if len(fds) > MAX_FDS:
            raise ProtocolError(f"{len(fds)} descriptors in one message, limit {MAX_FDS}")
        view = memoryview(encode(msg, len(fds)))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        deadline = None if timeout is None else time.monotonic() + timeout
        while view:
            try:
                sent = self._sock.sendmsg([view], ancillary, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                if not self._wait(select.POLLOUT, deadline):
                    raise Timeout("the peer does not read") from None
                continue
            except OSError as e:
                raise Closed(f"the peer is gone: {e.strerror}") from e
            ancillary = []
            view = view[sent:]

    def recv(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Returns the next message and its descriptors, which become the caller's.

        ``timeout`` is in seconds; None waits for ever. Raises Closed, Timeout, ProtocolError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            if self._fill():
                # A peer that sends byte by byte always has something there.
                late = deadline is not None and time.monotonic() > deadline + GRACE
            else:
                late = not self._wait(select.POLLIN, deadline)
            if late and self._missing() > 0:
                raise Timeout(f"no message within {timeout:g} s")

    def pending(self) -> bool:
        """Whether ``recv`` would return without waiting."""
        while self._missing() > 0:
            if self._missing() > _HEADER + self._limit:
                return True
            try:
                if not self._fill():
                    return False
            except ProtocolError:
                return True
        return True

    def shut(self) -> None:
        """Ends the conversation: whoever waits at either end finds the other gone. From any thread,
        since the descriptor stays open.
        """
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket and every descriptor that arrived and was not handed out."""
        self._drop_fds()
        self._sock.close()

    def _missing(self) -> int:
        have = len(self._buffer)
        if have < _HEADER:
            return _HEADER - have
        return _HEADER + int.from_bytes(self._buffer[:_HEADER], "big") - have

    def _frame(self) -> tuple[dict[str, Any], list[int]] | None:
        if (
            len(self._buffer) >= _HEADER
            and int.from_bytes(self._buffer[:_HEADER], "big") > self._limit
        ):
            raise ProtocolError("frame over the size limit")
        if self._missing() > 0:
            return None
        body = bytes(self._buffer[_HEADER:])
        self._buffer.clear()
        fds, self._fds = self._fds, []
        try:
            msg = decode(body)
            if msg.get("fds", 0) != len(fds):
                raise ProtocolError(
                    f"{len(fds)} descriptors arrived, {msg.get('fds', 0)} were announced"
                )
        except ProtocolError:
            _close_all(fds)
            raise
        return msg, fds

    def _fill(self) -> bool:
        """Reads towards the current frame and never past it, so that descriptors stay with their
        frame.
        """
        if self._flooded:
            raise ProtocolError("too many descriptors in one message")
        want = min(self._missing(), 1 << 20)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                want, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as e:
            raise Closed(f"the peer is gone: {e.strerror}") from e
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC or len(self._fds) > MAX_FDS:
            self._flooded = True
            self._drop_fds()
            raise ProtocolError("too many descriptors in one message")
        if not data:
            raise Closed("the peer closed the conversation")
        self._buffer += data
        return True

    def _wait(self, event: int, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        if deadline is None:
            poll.poll()
            return True
        left = deadline - time.monotonic()
        return bool(poll.poll(max(0.0, left) * 1000)) if left > 0 else bool(poll.poll(0))

    def _drop_fds(self) -> None:
        fds, self._fds = self._fds, []
        _close_all(fds)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # a descriptor that is closed already is what we want
