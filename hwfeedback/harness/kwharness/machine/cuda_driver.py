"""The CUDA driver through ctypes: as much of it as measuring needs, and no torch.

Nothing is loaded when this module is imported, so a process that imports it can still fork workers
that use CUDA. ``Driver()`` loads libcuda. Every call is checked: what fails is a CudaError with the
driver's own name for it.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Attributes of a device, of CUdevice_attribute in cuda.h.
ATTRIBUTES = {
    "max_threads_per_block": 1,
    "shared_bytes_per_block": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "multiprocessors": 16,
    "integrated": 18,
    "ecc": 32,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_multiprocessor": 39,
    "major": 75,
    "minor": 76,
    "shared_bytes_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "cooperative": 95,
    "shared_bytes_per_block_opt_in": 97,
    "virtual_memory": 102,
    "share_by_descriptor": 103,
    "blocks_per_multiprocessor": 106,
    "persisting_l2_bytes": 108,
}

# Errors after which a context is of no use any more, from the list of CUresult in cuda.h.
STICKY = frozenset(
    {
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_CONTAINED",
    }
)

_EVENT_DEFAULT = 0
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_GOT_TO = 0  # CU_STREAM_WAIT_VALUE_GEQ
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_PERSISTING = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3  # CUmemAllocationType, CUmemLocationType, CUmemAccess


class CudaError(Exception):
    """A call of the driver failed. ``name`` is its own, as CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call, self.name = call, name

    @property
    def sticky(self) -> bool:
        """Whether every later call in the same context fails as well."""
        return self.name in STICKY

    @property
    def out_of_memory(self) -> bool:
        return self.name == "CUDA_ERROR_OUT_OF_MEMORY"


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Driver:
    """libcuda with one device's primary context, which torch in the same process shares.

    Raises CudaError: CUDA_ERROR_NO_DEVICE where the driver shows none, and ``libcuda.so.1`` as the
    call where there is no driver.
    """

    def __init__(self, index: int = 0) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            raise CudaError("libcuda.so.1", "no NVIDIA driver is installed") from e
        self._check("cuInit", 0)
        self._device = ctypes.c_int()
        self._check("cuDeviceGet", ctypes.byref(self._device), index)
        self.index = index
        self._granularity = 0
        self._context: ctypes.c_void_p | None = None

    def _check(self, call: str, *args: Any) -> None:
        self._said(call, getattr(self._lib, call)(*args))

    def _said(self, call: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(call, (text.value or b"").decode() or f"error {code}")

    def name(self) -> str:
        """Returns the marketing name, as "NVIDIA H100 80GB HBM3"."""
        text = ctypes.create_string_buffer(256)
        self._check("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode(errors="replace")

    def uuid(self) -> str:
        """Returns the GPU's own name, as "GPU-" and the digits of a UUID."""
        raw = (ctypes.c_ubyte * 16)()
        self._check("cuDeviceGetUuid_v2", raw, self._device)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def attributes(self) -> dict[str, int]:
        """Returns ATTRIBUTES' values, 0 for what this driver does not know, and memory_bytes."""
        found = {}
        for name, number in ATTRIBUTES.items():
            value = ctypes.c_int()
            code = self._lib.cuDeviceGetAttribute(ctypes.byref(value), number, self._device)
            found[name] = 0 if code else value.value
        total = ctypes.c_size_t()
        self._check("cuDeviceTotalMem_v2", ctypes.byref(total), self._device)
        return found | {"memory_bytes": total.value}

    def retain(self) -> None:
        """Makes the device's primary context, or takes it up, and has this thread use it."""
        context = ctypes.c_void_p()
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._context = context
        self._check("cuCtxSetCurrent", context)

    def enter(self) -> None:
        """Has this thread use the context, too."""
        self._check("cuCtxSetCurrent", self._context)

    def release(self) -> None:
        """Lets the primary context go. With its last user goes all that was allocated in it."""
        if self._context is not None:
            self._context = None
            self._check("cuDevicePrimaryCtxRelease_v2", self._device)

    def give_up_persisting(self) -> None:
        """Has the L2 keep nothing for this context: it has no part of it to itself any more, and
        the lines that persist there are as any others. Where it has none, as usual, or the GPU
        knows none, nothing is done.
        """
        size = ctypes.c_size_t()
        code = self._lib.cuCtxGetLimit(ctypes.byref(size), _PERSISTING)
        if code == 0 and size.value:
            self._lib.cuCtxSetLimit(_PERSISTING, ctypes.c_size_t(0))  # not where MPS has set it
            self._check("cuCtxResetPersistingL2Cache")

    def synchronize(self) -> None:
        """Waits until all that this process launched has ended."""
        self._check("cuCtxSynchronize")

    def free_bytes(self) -> int:
        """Returns how much memory of the device nobody has."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Returns the address of ``size`` bytes of device memory."""
        address = ctypes.c_uint64()
        self._check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._check("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, address: int, value: int, size: int) -> None:
        """Sets ``size`` bytes to the 32-bit ``value`` over and over; both are multiples of 4."""
        at, count = ctypes.c_uint64(address), ctypes.c_size_t(size // 4)
        self._check("cuMemsetD32_v2", at, ctypes.c_uint(value), count)

    def to_host(self, host: int, address: int, size: int) -> None:
        target = ctypes.c_void_p(host)
        self._check("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(size))

    def share(self, size: int) -> tuple[Shared, int]:
        """Allocates memory that another process can map.

        Returns it with a descriptor to send; the caller closes that.
        """
        prop = self._prop()
        size = self._whole(size)
        handle = ctypes.c_uint64()
        self._check(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(size),
            ctypes.byref(prop),
            ctypes.c_uint64(0),
        )
        fd = ctypes.c_int(-1)
        try:
            self._check(
                "cuMemExportToShareableHandle",
                ctypes.byref(fd),
                handle,
                _DESCRIPTOR,
                ctypes.c_uint64(0),
            )
            return self._map(handle, size), fd.value
        except CudaError:
            if fd.value >= 0:
                os.close(fd.value)
            self._check("cuMemRelease", handle)
            raise

    def take(self, fd: int, size: int) -> Shared:
        """Maps what another process shares, of the size that it asked for.

        Raises CudaError for a descriptor of something else, and for less memory than that.
        """
        handle = ctypes.c_uint64()
        self._check(
            "cuMemImportFromShareableHandle",
            ctypes.byref(handle),
            ctypes.c_void_p(fd),
            _DESCRIPTOR,
        )
        try:
            return self._map(handle, self._whole(size))
        except CudaError:
            self._check("cuMemRelease", handle)
            raise

    def _whole(self, size: int) -> int:
        """Returns the size of the pages that hold so much."""
        if not self._granularity:
            found, prop = ctypes.c_size_t(), self._prop()
            self._check("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(prop), 0)
            self._granularity = found.value
        return -(-size // self._granularity) * self._granularity

    def _prop(self) -> _AllocationProp:
        prop = _AllocationProp(type=_PINNED, handle_types=_DESCRIPTOR)
        prop.location = _Location(_ON_DEVICE, self.index)
        return prop

    def _map(self, handle: ctypes.c_uint64, size: int) -> Shared:
        address, bytes_ = ctypes.c_uint64(), ctypes.c_size_t(size)
        nothing = ctypes.c_uint64(0)
        self._check(
            "cuMemAddressReserve",
            ctypes.byref(address),
            bytes_,
            ctypes.c_size_t(0),
            nothing,
            nothing,
        )
        try:
            self._check("cuMemMap", address, bytes_, ctypes.c_size_t(0), handle, nothing)
        except CudaError:
            self._check("cuMemAddressFree", address, bytes_)
            raise
        access = _Access(_Location(_ON_DEVICE, self.index), _READ_WRITE)
        self._check("cuMemSetAccess", address, bytes_, ctypes.byref(access), ctypes.c_size_t(1))
        return Shared(self, handle, address.value, size)

    def module(self, image: bytes) -> Module:
        """Loads a cubin or PTX."""
        return Module(self, image)

    def event(self) -> Event:
        return Event(self)

    def functions(self, *names: str) -> list[ctypes.c_void_p]:
        """Returns the addresses of functions of the driver, for code that is not Python."""
        return [ctypes.cast(getattr(self._lib, name), ctypes.c_void_p) for name in names]

    def stream(self) -> Stream:
        return Stream(self)

    def await_word(self, address: int, value: int) -> None:
        """Has the null stream wait until the 32-bit word there has got to ``value``."""
        at, nothing = ctypes.c_uint64(address), ctypes.c_void_p()
        self._check("cuStreamWaitValue32_v2", nothing, at, ctypes.c_uint32(value), _GOT_TO)

    def write_word(self, address: int, value: int, stream: Stream | None = None) -> None:
        """Has a stream, the null stream, write a 32-bit word when all before it is done."""
        on = ctypes.c_void_p() if stream is None else stream.handle
        at = ctypes.c_uint64(address)
        self._check("cuStreamWriteValue32_v2", on, at, ctypes.c_uint32(value), 0)

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Times what is launched inside it, in seconds, by a pair of events on the null stream."""
        start, end, took = self.event(), self.event(), [0.0]
        try:
            start.record()
            yield took
            end.record()
            took[0] = end.seconds_since(start)
        finally:
            start.destroy()
            end.destroy()


class Shared:
    """Device memory that two processes have mapped."""

    def __init__(self, driver: Driver, handle: ctypes.c_uint64, address: int, size: int) -> None:
        self._driver, self._handle = driver, handle
        self.address, self.size = address, size

    def unmap(self) -> None:
        """Takes it out of this process; the other's mapping stays."""
        at, size = ctypes.c_uint64(self.address), ctypes.c_size_t(self.size)
        self._driver._check("cuMemUnmap", at, size)
        self._driver._check("cuMemRelease", self._handle)
        self._driver._check("cuMemAddressFree", at, size)


class Stream:
    """A stream that does not wait for the null stream, nor it for this one."""

    def __init__(self, driver: Driver) -> None:
        self.handle = ctypes.c_void_p()
        driver._check("cuStreamCreate", ctypes.byref(self.handle), _NON_BLOCKING)


class Event:
    """A point in the work of the null stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._event = driver, ctypes.c_void_p()
        driver._check("cuEventCreate", ctypes.byref(self._event), _EVENT_DEFAULT)

    def record(self) -> None:
        self._driver._check("cuEventRecord", self._event, ctypes.c_void_p())

    def over(self) -> bool:
        """Whether all before it is done. Raises CudaError where that has failed."""
        code = self._driver._lib.cuEventQuery(self._event)
        if code != _NOT_READY:
            self._driver._said("cuEventQuery", code)
        return code != _NOT_READY

    def seconds_since(self, earlier: Event) -> float:
        """Waits for this event and returns the device's time since the other."""
        self._driver._check("cuEventSynchronize", self._event)
        milliseconds = ctypes.c_float()
        call = "cuEventElapsedTime"
        self._driver._check(call, ctypes.byref(milliseconds), earlier._event, self._event)
        return milliseconds.value / 1e3

    def destroy(self) -> None:
        self._driver._check("cuEventDestroy_v2", self._event)


class Module:
    """Loaded device code."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver, self._module = driver, ctypes.c_void_p()
        driver._check("cuModuleLoadData", ctypes.byref(self._module), image)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(
        self, name: str, grid: int, block: int, args: Sequence[ctypes._SimpleCData[Any]]
    ) -> None:
        """Launches ``name`` on the null stream: ``grid`` blocks of ``block`` threads."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            call = "cuModuleGetFunction"
            self._driver._check(call, ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        stream = ctypes.c_void_p()
        self._driver._check(
            "cuLaunchKernel",
            self._functions[name],
            grid,
            1,
            1,
            block,
            1,
            1,
            0,
            stream,
            pointers,
            ctypes.c_void_p(),
        )

    def unload(self) -> None:
        self._driver._check("cuModuleUnload", self._module)
