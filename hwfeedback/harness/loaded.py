"""Names what an object has a process run: the bytes that are loaded of it. The folder that it was
compiled in, which debuggers read, and the identity that a linker gives it do not count.

An object is foreign: this is for a sandboxed worker.
"""

from __future__ import annotations

import hashlib
import struct

_LOAD, _NOTE = 1, 4  # kinds of segments of an ELF file (System V ABI, program header)
_TABLE, _ENTRIES, _SEGMENTS = 32, 54, 1 << 10


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
    # Where the tables of what is not loaded lie.
    plain[40:48], plain[58:64] = bytes(8), bytes(6)
    found: list[tuple[int, int]] = []
    for i in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
        if kind == _NOTE:
            plain[at : at + length] = bytes(len(data[at : at + length]))
        elif kind == _LOAD:
            found.append((at, length))
    return [bytes(plain[at : at + length]) for at, length in found]
