"""The contents of timed calls: inputs, and what eager makes of them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import torch

from kwharness.base.tensors import DTYPES, Layout, laid_out
from kwharness.machine.device import CPU, Device
from kwharness.timing import window_base
from kwharness.timing.window import Window

# allocator.cpp's, where it is preloaded.
PAST_CACHES = hasattr(window_base.libc, "kernelwright_copy_past_caches")
_copy_past_caches = (
    window_base.libc.kernelwright_copy_past_caches if PAST_CACHES else window_base.libc.memmove
)
_copy_past_caches.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
window_base.libc.memchr.restype = ctypes.c_void_p
window_base.libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


class Contents:
    """The pool of contents of a task in the referee's private memory, and what eager makes of them.

    ``draw(i)`` returns the inputs of content i, which no worker may be able to predict. A worker
    process meets each content at most once, ``repeat`` windows aside: ``take`` deals them out in
    order, ``new_process`` starts again.
    """

    large = False  # whether there is room for the blocks of one worker at a time

    def __init__(
        self,
        slots: window_base.Slots,
        draw: Callable[[int], Sequence[torch.Tensor]],
        device: Device = CPU,
    ) -> None:
        self.slots = slots
        self.device = device
        self.again_s = 0.0  # in which some were drawn, or computed, while a worker waited
        self._draw = draw
        self._varied = self._pool(0, slots.in_slot)
        self._inputs = self._pool(0, slots.in_slot)
        self._outputs = self._pool(0, slots.out_slot)
        self._known: list[bool] = []  # whether the row of _outputs is filled
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def drawn_by(self, draw: Callable[[int], Sequence[torch.Tensor]]) -> Contents:
        """Returns this pool, where ``draw`` gives what it grows by."""
        self._draw = draw
        return self

    def vary(self, varied: Sequence[Sequence[torch.Tensor]]) -> None:
        """Adds further inputs: rows -1, -2 and so on, which ``take`` never deals out."""
        self._varied = self._pool(len(varied), self.slots.in_slot)
        for i, tensors in enumerate(varied):
            self._fill(self._varied, i, tensors)

    def grow(self, count: int, deadline_ns: int | None = None) -> None:
        """Draws until there are ``count`` contents, or until the deadline."""
        have = len(self._known)
        if count <= have:
            return
        inputs = self._pool(count, self.slots.in_slot)
        outputs = self._pool(count, self.slots.out_slot)
        inputs[:have].copy_(self._inputs[:have])
        outputs[:have].copy_(self._outputs[:have])
        self._inputs, self._outputs = inputs, outputs
        for i in range(have, count):
            self._fill(inputs, i, self._draw(i))
            self._known.append(False)
            if deadline_ns is not None and window_base.now_ns() > deadline_ns:
                return

    def _pool(self, rows: int, slot: int) -> torch.Tensor:
        return torch.empty(rows, slot, dtype=torch.uint8, device=self.device.torch)

    def _fill(self, pool: torch.Tensor, row: int, tensors: Sequence[torch.Tensor]) -> None:
        for view, t in zip(row_views(pool[row], self.slots.inputs), tensors, strict=True):
            view.copy_(t)

    @property
    def varied(self) -> range:
        """The rows of the varied inputs."""
        return range(-len(self._varied), 0)

    def new_process(self) -> None:
        """The next worker has met nothing yet."""
        self._next = 0

    def left(self) -> int:
        """Returns how many contents the current process has not met."""
        return len(self) - self._next

    def take(self, n: int) -> range:
        """Returns up to n contents that the current process has not met."""
        got = range(self._next, min(self._next + n, len(self)))
        self._next += len(got)
        return got

    def met(self, n: int) -> range:
        """Returns up to n contents that the current process has met, the latest ones."""
        return range(max(self._next - n, 0), self._next)

    def row(self, row: int) -> torch.Tensor:
        """Returns the bytes of one row."""
        return self._inputs[row] if row >= 0 else self._varied[-1 - row]

    def write(self, rows: Sequence[int], target: int) -> None:
        """Copies these rows to memory at an address, past the caches."""
        slot = self.slots.in_slot
        for i, row in enumerate(rows):
            _copy_past_caches(target + i * slot, self.row(row).data_ptr(), slot)

    def inputs(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """Returns inputs that were drawn, each tensor with the call as its first dimension."""
        return window_base.stack(_rows(self._inputs, rows), self.slots.inputs)

    def expected(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """Returns what eager made of them, the call as the first dimension."""
        if not all(self._known[r] for r in rows):
            raise LookupError("contents without expected outputs")
        return window_base.stack(_rows(self._outputs, rows), self.slots.outputs)

    def set_expected(self, window: Window) -> None:
        """Keeps the outputs of a window of the eager baseline as what its contents give."""
        for i, r in enumerate(window.rows):
            self._outputs[r].copy_(window.raw[i])
            self._known[r] = True


def row_views(raw: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Returns the tensors of one row. ``raw`` is uint8 [slot]."""
    out = []
    for entry in layout:
        dtype, shape = DTYPES[entry.dtype], entry.shape
        size = math.prod(shape) * dtype.itemsize
        if not size:
            out.append(torch.empty(shape, dtype=dtype, device=raw.device))
            continue
        flat = raw[entry.offset : entry.offset + size].view(dtype)
        out.append(laid_out(flat, entry))
    return out


def _rows(raw: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Returns rows of a matrix: a view where they lie together, else a copy."""
    if isinstance(rows, range):
        return raw[rows.start : rows.stop]
    return raw[torch.tensor(list(rows), dtype=torch.int64, device=raw.device)]
