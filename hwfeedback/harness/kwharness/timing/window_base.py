"""What both sides of a timed window share: kinds, slots, addresses."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kwharness.base.operations import Failure, Windows
from kwharness.base.tensors import ALIGNMENT, DTYPES, Entry, Layout, laid_out, layout_of

Forward = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
Asked = Callable[[Callable[[], list[torch.Tensor]]], list[torch.Tensor]]

PAGE = mmap.PAGESIZE
KINDS = ("fresh", "varied", "repeat", "chained")

now_ns = time.perf_counter_ns
F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h; the fcntl module of Python 3.11 lacks it
RAN_ON = "RanOn"  # the type of the error of a worker that runs while it is stopped
GPU_BUSY = "GpuBusy"  # of one during whose stop its GPU is at work: for it, or for a stranger
TOOK_MEMORY = "TookMemory"  # of one that leaves the GPU without
MALFORMED = "the worker's answer is malformed"

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Link(Protocol):
    """What is needed of protocol.Channel."""

    def send(self, msg: dict[str, Any], fds: Sequence[int] = ()) -> None: ...

    def recv(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]: ...

    def pending(self) -> bool: ...


class CallFailed(Exception):
    """The worker answered that a call failed: its forward raised, or its outputs do not fit."""

    def __init__(self, error: Failure) -> None:
        super().__init__(f"{error.type or 'error'}: {error.message}")
        self.error = error


@dataclass(frozen=True)
class Slots:
    """Where the tensors of one call lie: one row for its inputs, one for its outputs.

    Rows of inputs are whole pages, so that each can be mapped on its own.
    """

    inputs: Layout
    in_slot: int
    outputs: Layout
    out_slot: int

    @classmethod
    def of(
        cls,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        orders: Sequence[Sequence[int]] = (),
    ) -> Slots:
        """Returns the slots for tensors of these dtypes and shapes. Meta tensors will do.

        ``orders`` are the inputs': see tensors.layout_of.
        """
        in_layout, in_size = layout_of(inputs, orders=orders)
        out_layout, out_size = layout_of(outputs)
        return cls(in_layout, _round(in_size, PAGE), out_layout, _round(out_size, ALIGNMENT))

    @property
    def bytes(self) -> int:
        return self.in_slot + self.out_slot

    def large(self, llc_bytes: int) -> bool:
        """Whether the outputs are too large for their memory to be warm for certain."""
        return 32 * self.out_slot > llc_bytes


def _round(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def _check_errno(address: int | None, what: str) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return address


def tensor_at(address: int, entry: Entry) -> torch.Tensor:
    dtype, shape, count = DTYPES[entry.dtype], entry.shape, entry.numel
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = count * dtype.itemsize
    raw = (ctypes.c_byte * size).from_address(address + entry.offset)
    return laid_out(torch.frombuffer(raw, dtype=dtype, count=count), entry)


# The worker's side.


class Inputs:
    """The rows of inputs in the worker: mapped once, read-only, always the same tensors.

    The referee changes their content while this process is stopped.
    """

    def __init__(self, fd: int, layout: Layout, slot: int, rows: int) -> None:
        self._size = max(slot * rows, PAGE)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        base = _check_errno(libc.mmap(None, self._size, mmap.PROT_READ, flags, fd, 0), "map")
        self._base = base
        self.block = range(base, base + self._size)  # addresses
        self.rows = [[tensor_at(base + r * slot, e) for e in layout] for r in range(rows)]

    def close(self) -> None:
        self.rows = []
        libc.munmap(self._base, self._size)


class OutputMismatch(ValueError):
    """A forward returned something else than the task's outputs."""


def barred(request: Windows, block: range) -> list[range]:
    """Returns where each output may not lie: in ``block``, the inputs', unless ``aliases`` says
    that the reference's lies there. A baseline's may.
    """
    n = len(request.outputs)
    if request.aliases is None:
        return [range(0)] * n
    return [range(0) if a >= 0 else block for a in [*request.aliases, *[-1] * n][:n]]


def store(
    outputs: Sequence[torch.Tensor], views: list[torch.Tensor], apart: Sequence[range]
) -> None:
    check_outputs(outputs, views, apart)
    for got, view in zip(outputs, views, strict=True):
        if got.is_contiguous() and not got.is_conj() and not got.is_neg():
            # Not copy_: it would wake threads, and those of the next call would wait for them.
            ctypes.memmove(view.data_ptr(), got.data_ptr(), got.numel() * got.element_size())
        else:
            view.copy_(got)


def check_outputs(
    outputs: Sequence[torch.Tensor], views: list[torch.Tensor], apart: Sequence[range]
) -> None:
    """Raises OutputMismatch for what are not the task's outputs."""
    if len(outputs) != len(views):
        raise OutputMismatch(f"forward returned {len(outputs)} tensors, the task has {len(views)}")
    for i, (got, view) in enumerate(zip(outputs, views, strict=True)):
        if got.shape != view.shape or got.dtype != view.dtype:
            raise OutputMismatch(
                f"output {i} is {got.dtype} {list(got.shape)}, "
                f"the task has {view.dtype} {list(view.shape)}"
            )
        if type(got) not in (torch.Tensor, torch.nn.Parameter) or got.layout is not torch.strided:
            raise OutputMismatch(f"output {i} is a {type(got).__name__}, not a plain tensor")
        if got.device != view.device:
            raise OutputMismatch(f"output {i} is on {got.device}, the task's is on {view.device}")
        if got.data_ptr() in apart[i]:
            raise OutputMismatch(f"output {i} lies in the memory of an input, the task's does not")


def stack(raw: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Returns the tensors of all rows as strided views. ``raw`` is uint8 [rows, slot]."""
    rows, slot = raw.shape
    out: list[torch.Tensor] = []
    for entry in layout:
        dtype, shape = DTYPES[entry.dtype], entry.shape
        strides = entry.strides or [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        if math.prod(shape) == 0 or rows == 0:
            out.append(torch.empty([rows, *shape], dtype=dtype, device=raw.device))
            continue
        # as_strided takes its offset in elements from the start of the storage, not of the view.
        flat = raw.view(-1).view(dtype)
        start = flat.storage_offset() + entry.offset // dtype.itemsize
        out.append(flat.as_strided([rows, *shape], [slot // dtype.itemsize, *strides], start))
    return out
