"""Names what an object has a process run: the bytes that are loaded of it. The folder that it was
compiled in, which debuggers read, and the identity that a linker gives it do not count.

An object is foreign: this is for a sandboxed worker.
"""

from __future__ import annotations

import hashlib
import struct

_LOAD, _NOTE = 1, 4  # kinds of segments of an ELF file (System V ABI, program header)
_HEADER, _TABLE, _ENTRIES = 64, 32, 54  # bytes of the file's header, and where in it these are
_SEGMENTS = 1 << 10


def digest(data: bytes) -> str:
    """Returns a hex hash. Of what is no such object all bytes count."""
    whole = hashlib.sha256()
    try:
        parts = _parts(data)
    except (struct.error, ValueError):
        parts = []
    for part in parts or [data]:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def _parts(data: bytes) -> list[bytes]:
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, the least byte first
        return []
    (table,) = struct.unpack_from("<Q", data, _TABLE)
    size, count = struct.unpack_from("<HH", data, _ENTRIES)
    if count > _SEGMENTS:
        raise ValueError("so many segments")
    plain = bytearray(data)
    # They say where in the file things lie, behind notes of any length too.
    for at, end in ((0, _HEADER), (table, table + size * count)):
        plain[at:end] = bytes(len(data[at:end]))
    found: list[tuple[int, int]] = []
    for i in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
        if kind == _NOTE:
            plain[at : at + length] = bytes(len(data[at : at + length]))
        elif kind == _LOAD:
            found.append((at, length))
    if sum(length for _, length in found) > len(data):
        raise ValueError("segments that lie over each other")
    return [bytes(plain[at : at + length]) for at, length in found]
