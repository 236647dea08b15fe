"""Empties the L2 of a GPU, in the referee as in a worker."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from kwharness.machine.gpu import Gpu, gpu
from kwharness.timing import ceilings_cuda

READ_BLOCK = 512


@functools.cache
def image() -> bytes:
    """Returns the kernel that reads, for the GPU of this process."""
    has = gpu().driver.attributes()
    return ceilings_cuda.compile_for(has["major"], has["minor"])


class Flush:
    """Has the GPU read twice its L2, on the default stream."""

    def __init__(self, device: Gpu, code: bytes) -> None:
        has = device.driver.attributes()
        size = max(2 * has["l2_bytes"], 1 << 22) // 16 * 16
        self._block = torch.ones(size, dtype=torch.uint8, device=device.torch)
        self._sink = torch.zeros(4, device=device.torch)
        self._module = device.driver.module(code)
        self._grid = 2 * has["multiprocessors"]
        self._args: list[Any] = [
            ctypes.c_uint64(self._block.data_ptr()),
            ctypes.c_uint64(self._sink.data_ptr()),
            ctypes.c_longlong(size // 16),
            ctypes.c_int(1),
        ]

    def __call__(self) -> None:
        self._module.launch("read", self._grid, READ_BLOCK, self._args)
