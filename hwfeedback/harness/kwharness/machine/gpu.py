"""One NVIDIA GPU, by CUDA."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from kwharness.base.tensors import Layout, LayoutError, checked, laid_out
from kwharness.machine import cuda_driver
from kwharness.machine.device import Device

APART = 1 << 29  # bytes of a tensor in whose memory no smaller one may lie: see ``keep_apart``
POISONED = 1 << 30  # bytes of its memory that are no zeros when a forward begins
SMALL = 1 << 20  # bytes: what torch's allocator serves from small segments
VARIED = 4 << 30  # bytes of inputs that come among timed calls: it moves them quickly


class Gpu(Device):
    """A GPU, and torch's context on it. A process has one at most, the one that its environment
    shows it. Its blocks are memory that the driver shares by a descriptor. Raises CudaError where
    there is none.
    """

    kind = "cuda"
    torch = torch.device("cuda", 0)
    on_cores = False
    has_driver = True
    slow_to_begin = True
    outlasts_candidates = True
    replays = True
    profiled = True
    sanitized = True
    object_ending = ".cubin"
    compile_imports = ("compile", "compile_gpu")
    warm_inductor = False

    def __init__(self) -> None:
        self.driver = cuda_driver.Driver(0)
        self.driver.retain()
        torch.zeros(1, device=self.torch)

    def create(self, size: int, name: str = "tensors") -> GpuBlock:
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
        self.driver.enter()
        try:
            shared = self.driver.take(fd, size)
        except cuda_driver.CudaError as e:
            raise LayoutError(f"a block of {size} bytes cannot be mapped: {e}") from e
        finally:
            os.close(fd)
        return GpuBlock(self, shared, -1, size)

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.torch)[0])

    def room(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info(self.torch)

    def unused_bytes(self) -> int:
        """Nobody has it, or this process has it for later."""
        return self.free_bytes() + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def pool_bytes(self) -> int:
        return self.free_bytes() // 4

    def varied_bytes(self, usual: int) -> int:
        return min(VARIED, self.free_bytes() // 16)

    def keep_apart(self) -> None:
        """None of that could be given back for as long as the small one is there: what a model
        keeps, or cuBLAS for its work.
        """
        older = torch.cuda.memory._set_allocator_settings
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", older)
        change(f"max_split_size_mb:{APART >> 20}")

    def release(self) -> None:
        torch.cuda.empty_cache()

    let_go = release

    def capability(self) -> tuple[int, int]:
        has = self.driver.attributes()
        return int(has["major"]), int(has["minor"])

    def arch(self) -> str:
        major, minor = self.capability()
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def hold_to_float32(self) -> None:
        """torch's defaults allow TF32 in convolutions."""
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def placing(self) -> contextlib.AbstractContextManager[Any]:
        return self.torch

    def place(self, model: nn.Module) -> None:
        model.to(self.torch)

    @contextlib.contextmanager
    def own_convolutions(self) -> Iterator[None]:
        asked = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False  # and nothing else: TF32 stays as it is
        try:
            yield
        finally:
            torch.backends.cudnn.enabled = asked

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        runtime = torch.cuda.cudart()
        runtime.cudaProfilerStart()
        try:
            yield
        finally:
            runtime.cudaProfilerStop()

    def wake_profiler(self) -> None:
        with self.watched():
            torch.cuda._sleep(1)  # which launches ncu.WARMING
            self.synchronize()

    def poison(self) -> None:
        """What is kept for them, and as much of what is free as they may ask for."""
        stream = torch.cuda.current_stream().cuda_stream
        kept = requests_for(torch.cuda.memory_snapshot(), stream)
        size = min(POISONED, torch.cuda.mem_get_info()[0] // 2)
        if not kept or kept[0] < size:
            kept += [size, *[1 << 18] * 32]
        for t in [torch.empty(n // 4, dtype=torch.int32, device=self.torch) for n in kept]:
            t.fill_(0x7F7F7F7F)


def requests_for(segments: Iterable[dict[str, Any]], stream: int) -> list[int]:
    """Returns, largest first, requests of bytes that get all that torch's allocator keeps for a
    stream: one for a block of a large segment, several for one of a small segment.

    ``segments`` is torch.cuda.memory_snapshot(). What no request gets is left out: the pools of
    graphs, and what is left over of large blocks.
    """
    sizes: list[int] = []
    for segment in segments:
        if segment["stream"] != stream or any(segment.get("segment_pool_id", ())):
            continue
        for block in segment["blocks"]:
            size = int(block["size"]) if block["state"] == "inactive" else 0
            if segment["segment_type"] == "small":
                sizes += [SMALL] * (size // SMALL) + ([size % SMALL] if size % SMALL else [])
            elif size > SMALL:
                sizes.append(size)
    return sorted(sizes, reverse=True)


gpu = Gpu.here  # the GPU of this process


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
                out.append(torch.empty(entry.shape, dtype=dtype, device=self._device.torch))
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
        with contextlib.suppress(
            cuda_driver.CudaError
        ):  # else the context is of no use, and its memory goes with it
            self._device.driver.enter()
            self._device.driver.synchronize()
            self._shared.unmap()
