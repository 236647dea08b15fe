"""What is known of a kind of device, and what a process does on the one that it has.

``Device`` is the interface: its memory, in which tensors travel between processes, and what else
differs from one kind to another. No other package compares kinds. A new one is a class, in a module
of its own, and a row of KINDS; timing/device_timing.py has how its calls are timed. What has no row
there is timed as its base class is.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch import device as Place

from kwharness.base.constants import SHARED
from kwharness.base.tensors import Block, Layout, layout_of, received
from kwharness.machine import allocator

PEAK = SHARED.peak_calls
# And about so many where it is judged one thing after the other (bench/memory.py: 5 to 7).
SPARING_PEAK = 6
ROOM = 8  # times what is asked for are free: to give back takes tens of ms, and nobody needs it
LEFT = 7 / 8  # of the memory is there between evaluations; where it is not, something was left


# Where the class of each kind is: a worker may be told of its device by this name alone.
KINDS = {
    "cpu": "kwharness.machine.device:Cpu",
    "cuda": "kwharness.machine.gpu:Gpu",
}


class SharedBlock(Protocol):
    """Memory of a device that two processes have mapped: see tensors.Block."""

    fd: int
    size: int

    def bytes(self) -> torch.Tensor: ...

    def views(self, layout: Layout) -> list[torch.Tensor]: ...

    def close(self) -> None: ...

    def leave(self) -> None: ...


class Device(ABC):
    """One device of this process. What is told of a kind holds without a device, too."""

    kind: ClassVar[str]  # its name in KINDS, requests and records
    torch: ClassVar[Place]
    # Calls run on the machine's cores: what else runs there disturbs them, a compiler too, their
    # threads and instructions can be looked at, and their tensors are in a process' memory.
    on_cores: ClassVar[bool]
    # It has a driver, which may fail through nobody's fault, and strangers may be at work on it.
    has_driver: ClassVar[bool]
    # Making a process ready for it takes long: that is begun early, and what is there is kept.
    slow_to_begin: ClassVar[bool]
    # Its state outlasts a candidate: the sentinel, and what is timed before, serve several.
    outlasts_candidates: ClassVar[bool]
    # What was captured is replayed: a forward may run custom code that nothing calls.
    replays: ClassVar[bool]
    profiled: ClassVar[bool]  # by Nsight Compute, and its objects can be read
    sanitized: ClassVar[bool]  # compute-sanitizer checks what runs on it
    # Of an object that a compiler makes byte for byte again of the same source.
    object_ending: ClassVar[str]
    # Names of PREIMPORTS (process/spawn_request.py): what torch.compile needs for it.
    compile_imports: ClassVar[tuple[str, ...]]
    # torch.compile starts from a folder that was filled before: see inductor.warm.
    warm_inductor: ClassVar[bool]

    @classmethod
    @functools.cache
    def here(cls) -> Self:
        """Returns the one of this process."""
        return cls()

    # Its memory.

    @abstractmethod
    def create(self, size: int, name: str = "tensors") -> SharedBlock:
        """Makes memory to share, zeroed."""

    @abstractmethod
    def received(self, fd: int, size: int, *, populate: bool = False) -> SharedBlock:
        """Maps a block made by another process. The descriptor is taken over."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Returns how much memory nobody has."""

    @abstractmethod
    def room(self) -> tuple[int, int]:
        """Returns how many bytes a task may take in all, and how many there are."""

    @abstractmethod
    def unused_bytes(self) -> int:
        """Returns how much memory holds nothing."""

    @abstractmethod
    def pool_bytes(self) -> int:
        """Returns how much of its memory what is drawn for timed calls may take."""

    @abstractmethod
    def varied_bytes(self, usual: int) -> int:
        """Returns how much memory verified inputs may take that come among the timed calls."""

    @abstractmethod
    def keep_apart(self) -> None:
        """Has no small tensor keep what a large one has left."""

    @abstractmethod
    def release(self) -> None:
        """Gives back what is free and kept for later."""

    @abstractmethod
    def let_go(self) -> None:
        """Gives back what others who have the device may need."""

    # Work on it.

    @abstractmethod
    def capability(self) -> tuple[int, int]:
        """Returns CUDA's compute capability, as (9, 0); (0, 0) where there is none."""

    @abstractmethod
    def arch(self) -> str:
        """Returns what CUDA is compiled for, "" where it is not."""

    @abstractmethod
    def synchronize(self) -> None:
        """Returns when all that was asked of the device is done."""

    @abstractmethod
    def hold_to_float32(self) -> None:
        """Has float32 mean float32: torch's defaults allow less in places."""

    @abstractmethod
    def placing(self) -> contextlib.AbstractContextManager[Any]:
        """Has tensors made on the device, where nothing is named."""

    @abstractmethod
    def place(self, model: nn.Module) -> None:
        """Moves a model there."""

    def holds(self, t: Tensor) -> bool:
        """Whether a tensor lies in its memory."""
        return t.device.type == self.torch.type

    def takes(self, t: Tensor) -> bool:
        """Whether a tensor lies there, or where it can be moved from."""
        return t.device.type in ("cpu", self.torch.type)

    @abstractmethod
    def own_convolutions(self) -> contextlib.AbstractContextManager[Any]:
        """Has PyTorch do convolutions itself where a library is slow in float64."""

    @abstractmethod
    def watched(self) -> contextlib.AbstractContextManager[Any]:
        """Marks what a profiler of the process is to look at."""

    @abstractmethod
    def wake_profiler(self) -> None:
        """Launches something that a profiler looks at: it is ready then."""

    @abstractmethod
    def poison(self) -> None:
        """Fills the memory that the next allocations get."""


class Cpu(Device):
    """The machine's cores and memory. Its blocks are tensors.Block, over a memfd."""

    kind = "cpu"
    torch = torch.device("cpu")
    on_cores = True
    has_driver = False
    slow_to_begin = False
    outlasts_candidates = False
    replays = False
    profiled = False
    sanitized = False
    object_ending = ".so"
    compile_imports = ("compile",)
    warm_inductor = True

    def create(self, size: int, name: str = "tensors") -> Block:
        return Block.create(size, name)

    def received(self, fd: int, size: int, *, populate: bool = False) -> Block:
        return received(fd, size, writable=True, populate=populate)

    def free_bytes(self) -> int:
        """Of the machine's that is the sandbox's affair."""
        return 0

    def room(self) -> tuple[int, int]:
        with open("/proc/meminfo") as f:
            found = {line.partition(":")[0]: line.split()[1] for line in f}
        return int(found["MemAvailable"]) << 10, int(found["MemTotal"]) << 10

    def unused_bytes(self) -> int:
        return self.room()[0]

    def pool_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8

    def varied_bytes(self, usual: int) -> int:
        return usual

    def keep_apart(self) -> None:
        """Pages are given back as it is."""

    def release(self) -> None:
        allocator.release()

    def let_go(self) -> None:
        """Nobody has it alone."""

    def capability(self) -> tuple[int, int]:
        return 0, 0

    def arch(self) -> str:
        return ""

    def synchronize(self) -> None:
        """It is done when a call returns."""

    def hold_to_float32(self) -> None:
        """It does."""

    def placing(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def place(self, model: nn.Module) -> None:
        """It is there."""

    def own_convolutions(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def watched(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wake_profiler(self) -> None:
        """It needs none."""

    def poison(self) -> None:
        """The allocator does: see allocator.poison."""


CPU = Cpu.here()


def class_of(kind: str) -> type[Device]:
    """Returns the class of a kind, of which no device need be here. Raises KeyError."""
    module, _, name = KINDS[kind].partition(":")
    found: type[Device] = getattr(importlib.import_module(module), name)
    return found


def of(kind: str) -> Device:
    """Returns the device of this process of one kind. Raises KeyError."""
    return class_of(kind).here()


def built_for(arch: str) -> str:
    """Returns the kind of device that objects of an architecture are for, "" being the CPU."""
    return "cuda" if arch else "cpu"


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


def block_of(
    device: Device, tensors: Sequence[torch.Tensor], orders: Sequence[Sequence[int]] = ()
) -> tuple[SharedBlock, Layout]:
    """Makes a block that holds copies of the tensors. ``orders``: see tensors.layout_of."""
    layout, size = layout_of(tensors, orders=orders)
    block = device.create(size)
    for view, t in zip(block.views(layout), tensors, strict=True):
        view.copy_(t)
    return block, layout
