"""The device whose memory tensors travel in between processes: the CPU, or one GPU.

Both give blocks with the same methods: tensors.Block over a memfd, and ``GpuBlock`` over memory of
the GPU that the driver shares by a descriptor. A process has one GPU at most, the one that its
environment shows it.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Sequence
from contextlib import suppress

import torch

from kwharness.base.constants import SHARED
from kwharness.base.tensors import (
    Block,
    Layout,
    LayoutError,
    checked,
    laid_out,
    layout_of,
    received,
)
from kwharness.machine import allocator, cuda_driver

PEAK = SHARED.peak_calls
# And about so many where it is judged one thing after the other (bench/memory.py: 5 to 7).
SPARING_PEAK = 6
ROOM = 8  # times what is asked for are free: to give back takes tens of ms, and nobody needs it
APART = 1 << 29  # bytes of a tensor in whose memory no smaller one may lie: see ``keep_apart``
LEFT = 7 / 8  # of the memory is there between evaluations; where it is not, something was left


class Cpu:
    """The memory of the machine."""

    kind = "cpu"
    torch = torch.device("cpu")

    def create(self, size: int, name: str = "tensors") -> Block:
        return Block.create(size, name)

    def received(self, fd: int, size: int, *, populate: bool = False) -> Block:
        """Maps a block made by another process. The descriptor is taken over."""
        return received(fd, size, writable=True, populate=populate)

    def synchronize(self) -> None:
        """Returns when all that was asked of the device is done."""

    def free_bytes(self) -> int:
        """Returns how much memory nobody has: of the machine's that is the sandbox's affair."""
        return 0

    def room(self) -> tuple[int, int]:
        """Returns how many bytes a task may take in all, and how many there are."""
        with open("/proc/meminfo") as f:
            found = {line.partition(":")[0]: line.split()[1] for line in f}
        return int(found["MemAvailable"]) << 10, int(found["MemTotal"]) << 10

    def unused_bytes(self) -> int:
        """Returns how much memory holds nothing."""
        return self.room()[0]

    def keep_apart(self) -> None:
        """Has no small tensor keep what a large one has left: pages are given back as it is."""

    def release(self) -> None:
        """Gives back what is free and kept for later."""
        allocator.release()

    def hold_to_float32(self) -> None:
        """Has float32 mean float32: torch's defaults allow less in places."""


class Gpu:
    """The memory of one GPU, and torch's context on it. Raises CudaError where there is none."""

    kind = "cuda"
    torch = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.driver = cuda_driver.Driver(0)
        self.driver.retain()
        torch.zeros(1, device=self.torch)

    def create(self, size: int, name: str = "tensors") -> GpuBlock:
        """Makes memory to share, zeroed."""
        self.driver.enter()
        try:
            shared, fd = self.driver.share(size)
        except cuda_driver.CudaError as e:
            if not e.out_of_memory:
                raise
            self.release()  # what torch keeps here for later
            shared, fd = self.driver.share(size)
        block = GpuBlock(self, shared, fd, size)
        block.bytes().zero_()
        return block

    def received(self, fd: int, size: int, *, populate: bool = False) -> GpuBlock:
        """Maps a block made by another process. The descriptor is taken over."""
        self.driver.enter()
        try:
            shared = self.driver.take(fd, size)
        except cuda_driver.CudaError as e:
            raise LayoutError(f"a block of {size} bytes cannot be mapped: {e}") from e
        finally:
            os.close(fd)
        return GpuBlock(self, shared, -1, size)

    def free_bytes(self) -> int:
        """Returns how much of its memory nobody has."""
        return int(torch.cuda.mem_get_info(self.torch)[0])

    def room(self) -> tuple[int, int]:
        """Returns how many bytes a task may take in all, and how many there are."""
        return torch.cuda.mem_get_info(self.torch)

    def unused_bytes(self) -> int:
        """Returns how much holds nothing: nobody has it, or this process has it for later."""
        return self.free_bytes() + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def release(self) -> None:
        """Gives back what is free and kept for later."""
        torch.cuda.empty_cache()

    def keep_apart(self) -> None:
        """Has no small tensor lie in what a large one has left: none of that could be given back
        for as long as the small one is there (what a model keeps, or cuBLAS for its work).
        """
        older = torch.cuda.memory._set_allocator_settings
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", older)
        change(f"max_split_size_mb:{APART >> 20}")

    def synchronize(self) -> None:
        """Returns when all that was asked of the device is done."""
        torch.cuda.synchronize(self.torch)

    def hold_to_float32(self) -> None:
        """Has float32 mean float32: torch's defaults allow TF32 in convolutions."""
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


Device = Cpu | Gpu
CPU = Cpu()


@functools.cache
def gpu() -> Gpu:
    """Returns the GPU of this process."""
    return Gpu()


def give_back(device: Device, size: int, times: int = ROOM) -> None:
    """Gives back what is free and kept for later, unless so many times ``size`` bytes are free."""
    if device.free_bytes() < times * size:
        device.release()


def spares(device: Device, call_bytes: int) -> bool:
    """Whether a task whose call has inputs and outputs of so many bytes is to be judged in as
    little memory as can be, one thing after the other.
    """
    return PEAK * call_bytes > device.room()[0]


def too_large(device: Device, call_bytes: int) -> bool:
    """Whether such a task takes about more memory than the device has, even one thing after the
    other, whoever has some of it now.
    """
    return SPARING_PEAK * call_bytes > device.room()[1]


def tidy(device: Device) -> None:
    """Frees what earlier work has left behind, where that is much of the memory: what belongs to an
    evaluation hangs together in cycles, and a failure's traceback may hold the tensors of a large
    task.
    """
    room, whole = device.room()
    if room < whole * LEFT:
        gc.collect()
        device.release()


def of(kind: str) -> Device:
    """Returns the device of this process of one kind."""
    return gpu() if kind == "cuda" else CPU


def block_of(
    device: Device, tensors: Sequence[torch.Tensor], orders: Sequence[Sequence[int]] = ()
) -> tuple[Block | GpuBlock, Layout]:
    """Makes a block that holds copies of the tensors. ``orders``: see tensors.layout_of."""
    layout, size = layout_of(tensors, orders=orders)
    block = device.create(size)
    for view, t in zip(block.views(layout), tensors, strict=True):
        view.copy_(t)
    return block, layout


class GpuBlock:
    """Memory of the GPU that two processes have mapped.

    It stays mapped for as long as a tensor lies in it.
    """

    def __init__(self, device: Gpu, shared: cuda_driver.Shared, fd: int, size: int) -> None:
        """``fd`` is to be sent, and is this block's own; -1 for one that came."""
        self.fd, self.size = fd, size
        self._device = device
        self._raw: torch.Tensor | None = torch.as_tensor(
            _Mapped(device, shared), device=device.torch
        )

    def bytes(self) -> torch.Tensor:
        """Returns the whole block as bytes."""
        if self._raw is None:
            raise LayoutError("a block that was closed")
        return self._raw[: self.size]

    def views(self, layout: Layout) -> list[torch.Tensor]:
        """Returns the tensors of a layout as views.

        Raises LayoutError for one that does not fit.
        """
        raw = self.bytes()
        out: list[torch.Tensor] = []
        for entry, (dtype, offset, count) in zip(layout, checked(layout, self.size), strict=True):
            if count == 0:
                out.append(torch.empty(entry["shape"], dtype=dtype, device=self._device.torch))
            else:
                flat = raw[offset : offset + count * dtype.itemsize].view(dtype)
                out.append(laid_out(flat, entry))
        return out

    def close(self) -> None:
        """Closes the descriptor, and unmaps once no view is left."""
        self._raw = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    leave = close


class _Mapped:
    """Memory that torch takes as it is (numba's CUDA Array Interface, version 3), unmapped when no
    tensor lies in it any more.

    By ``__del__``, for that may be while an exception goes by, which Python puts aside for it. A
    DLPack deleter of Python's has it in its way.
    """

    def __init__(self, device: Gpu, shared: cuda_driver.Shared) -> None:
        self._device, self._shared = device, shared
        self.__cuda_array_interface__ = {
            "shape": (shared.size,),
            "typestr": "|u1",
            "data": (shared.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        with suppress(
            cuda_driver.CudaError
        ):  # else the context is of no use, and its memory goes with it
            self._device.driver.enter()
            self._device.driver.synchronize()
            self._shared.unmap()
