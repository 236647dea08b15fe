"""Tensors in shared memory: how inputs and outputs travel between processes.

A block is one memfd that holds several tensors, each without gaps at a 64-byte aligned offset,
described by a layout: dtype, shape and offset of each. One whose elements lie in another order than
a contiguous one's has strides as well.
Layouts travel as JSON, the memfd as a descriptor, and nothing is ever pickled.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kwharness.base.records import Message, Natural

ALIGNMENT = 64
MAX_TENSORS = 10_000  # in a block
MAX_DIMENSIONS = 64  # torch's own limit
DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
DTYPE_NAMES: dict[torch.dtype, str] = {d: n for n, d in DTYPES.items()}


@dataclass(frozen=True)
class Spec(Message):
    """What a tensor is, whatever its content."""

    dtype: str  # without "torch."
    shape: list[Natural]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element. Raises KeyError for a dtype that cannot be shared."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Entry(Spec):
    """A tensor in a block."""

    offset: Natural  # bytes
    strides: list[Natural] | None = None  # elements; None: it is contiguous


Layout = list[Entry]


class LayoutError(ValueError):
    """A layout from another process does not fit its block."""


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie without gaps, and each alone."""
    if len(shape) != len(strides):
        return False
    count = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != count:
                return False
            count *= size
    return True


def orders_of(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns the strides of each tensor that has another order than a contiguous one, but no
    gaps, and [] for the others.
    """
    return [
        list(t.stride()) if not t.is_contiguous() and dense(t.shape, t.stride()) else []
        for t in tensors
    ]


def _ordered(shape: Sequence[int], like: Sequence[int]) -> list[int]:
    """Returns the strides of a tensor without gaps, its dimensions in the order of others."""
    strides = [0] * len(shape)
    count = 1
    for i in sorted(range(len(shape)), key=lambda i: (like[i], -i)):
        strides[i] = count
        count *= max(shape[i], 1)
    return strides


def layout_of(
    tensors: Sequence[torch.Tensor], guard: int = 0, orders: Sequence[Sequence[int]] = ()
) -> tuple[Layout, int]:
    """Returns the layout for tensors of these dtypes and shapes, and the block's size in bytes.

    ``guard`` bytes, a multiple of the alignment, are left free before, between and after the
    tensors. ``orders`` are strides, of other tensors maybe: those with the same number of
    dimensions are laid out in the same order.
    """
    layout: Layout = []
    offset = guard
    for i, t in enumerate(tensors):
        if t.dtype not in DTYPE_NAMES:
            raise LayoutError(f"dtype {t.dtype} cannot be shared")
        ordered = i < len(orders) and orders[i] and len(orders[i]) == t.dim()
        strides = _ordered(t.shape, orders[i]) if ordered else None
        layout.append(Entry(DTYPE_NAMES[t.dtype], list(t.shape), offset, strides))
        size = t.numel() * t.element_size()
        offset += -(-size // ALIGNMENT) * ALIGNMENT + guard
    return layout, max(offset, ALIGNMENT)


def specs_of(tensors: Sequence[torch.Tensor]) -> list[Spec]:
    """Returns what each tensor is, whatever its dtype."""
    return [Spec(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in tensors]


def laid_out(flat: torch.Tensor, entry: Entry) -> torch.Tensor:
    """Returns all elements of a tensor, in the order in which they lie, as the tensor itself."""
    if entry.strides:
        return flat.as_strided(entry.shape, entry.strides)
    return flat.view(entry.shape)


def checked(layout: Layout, size: int) -> list[tuple[torch.dtype, int, int]]:
    """Returns dtype, offset and number of elements of each tensor of a layout.

    Raises LayoutError where they do not fit in a block of this size.
    """
    out: list[tuple[torch.dtype, int, int]] = []
    if len(layout) > MAX_TENSORS:
        raise LayoutError(f"a layout of {len(layout)} tensors")
    whole = 0
    for entry in layout:
        dtype, shape, offset = DTYPES.get(entry.dtype), entry.shape, entry.offset
        if dtype is None or len(shape) > MAX_DIMENSIONS:
            raise LayoutError(f"malformed layout entry: {entry!r:.100}")
        if not all(0 <= d < 1 << 48 for d in (*shape, offset)):
            raise LayoutError(f"no size or offset: {entry!r:.100}")
        strides = entry.strides or []
        if not all(0 < s < 1 << 62 for s in strides):
            raise LayoutError(f"malformed layout entry: {entry!r:.100}")
        if strides and not dense(shape, strides):
            raise LayoutError(f"no strides of a tensor without gaps: {entry!r:.100}")
        count = math.prod(shape)
        whole += count * dtype.itemsize
        end = offset + count * dtype.itemsize
        # Tensors over each other would make a copy of all larger than the block.
        if offset % ALIGNMENT or end > size or whole > size:
            raise LayoutError(f"layout entry {entry!r:.100} does not fit in {size} bytes")
        if math.prod(d or 1 for d in shape) >= 1 << 62:  # torch counts strides of empty ones
            raise LayoutError(f"no shape: {entry!r:.100}")
        out.append((dtype, offset, count))
    return out


class Block:
    """One mapping of a memfd. The tensors it gives are views: they die with ``close``."""

    def __init__(
        self, fd: int, size: int, *, writable: bool = True, populate: bool = False
    ) -> None:
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size, flags=flags, prot=prot)

    @classmethod
    def create(cls, size: int, name: str = "tensors") -> Block:
        """Makes a memfd of exactly ``size`` bytes, zeroed, that can neither grow nor shrink."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def views(self, layout: Layout) -> list[torch.Tensor]:
        """Returns the tensors of a layout as views.

        Raises LayoutError for one that does not fit.
        """
        out: list[torch.Tensor] = []
        for entry, (dtype, offset, count) in zip(layout, checked(layout, self.size), strict=True):
            if count == 0:
                out.append(torch.empty(entry.shape, dtype=dtype))
                continue
            flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset)
            out.append(laid_out(flat, entry))
        return out

    def bytes(self) -> torch.Tensor:
        """Returns the whole block as bytes."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=self.size)

    def close(self) -> None:
        """Unmaps, once no view is left, and closes the descriptor."""
        try:
            self._map.close()
        except BufferError:
            pass  # a view is alive: the mapping goes with it
        self.leave()

    def leave(self) -> None:
        """Closes the descriptor. It stays mapped for as long as a tensor lies in it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def received(fd: int, size: int, *, writable: bool, populate: bool = False) -> Block:
    """Maps a block made by another process, after checking that it is as large as said and cannot
    shrink: reading beyond the end of a file would kill the reader. The descriptor is taken over.
    """
    try:
        actual = os.fstat(fd).st_size
        if actual < size:
            raise LayoutError(f"block of {actual} bytes where {size} were announced")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as e:
            raise LayoutError("what came is no memory to share") from e
        if not seals & fcntl.F_SEAL_SHRINK:
            raise LayoutError("a block that its maker could shrink")
        try:
            return Block(fd, size, writable=writable, populate=populate)
        except (OSError, ValueError) as e:  # sealed against writing, or no address space
            raise LayoutError(f"a block of {size} bytes cannot be mapped: {e}") from e
    except BaseException:
        os.close(fd)
        raise
