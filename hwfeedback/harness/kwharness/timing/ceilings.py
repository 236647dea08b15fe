"""Ceilings of a CPU: the rates that nothing on it exceeds by much, measured in about two seconds.

The microbenchmarks are C++ (ceilings.cpp), built with g++ on first use into the cache folder and
run in a forked process of our own, so that neither their memory nor their threads stay behind.
What is kept is the fastest pass: a ceiling is what the machine can do when left alone. Whether it
was left alone shows in the spread: how far the typical pass of the quietest repetition stays below
the best of all, or how long a thread that never sleeps had no core. A machine that was busy is
given more repetitions, and then the spread says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kwharness.base.constants import SHARED
from kwharness.base.records import Message
from kwharness.base.requests import Ceilings
from kwharness.machine import toolchain
from kwharness.process import linux

SOURCE = Path(__file__).with_name("ceilings.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-pthread", "-ffp-contract=fast")
BUILD_S = 60.0
MEASURE_S = 60.0
# A repetition takes half a second. One that is disturbed says nothing, so there are some even where
# all is quiet, and more where nothing was.
LEAST, MOST = 3, 10
QUIET = SHARED.quiet_spread


class CeilingsFailed(Exception):
    """The microbenchmarks could not be built or run."""


@dataclass(frozen=True)
class MeasuredCeilings(Message):
    """What a device was measured to reach."""

    ceilings: Ceilings
    spread: float  # how far it was from being left alone, as a share from 0 to 1: see the module
    attributes: dict[str, int] = field(default_factory=dict)  # of a GPU: cuda_driver.ATTRIBUTES


def measure(threads: int, cache_dir: str, compiler: str = "g++") -> MeasuredCeilings:
    """Raises CeilingsFailed, and toolchain.Missing where there is no compiler."""
    library = build(cache_dir, compiler)
    return forked(lambda: _measure(library, threads), MEASURE_S)


def build(cache_dir: str, compiler: str = "g++") -> Path:
    """Returns the built library, from the cache where the same was built before."""
    source = SOURCE.read_bytes()
    try:
        version = subprocess.run(
            [compiler, "-dumpfullversion", "-dumpmachine"], capture_output=True, timeout=BUILD_S
        ).stdout
    except (FileNotFoundError, PermissionError) as e:
        raise toolchain.Missing(toolchain.NO_COMPILER) from e
    except (OSError, subprocess.SubprocessError) as e:
        raise CeilingsFailed(f"the compiler does not say its version: {e}") from e
    # -march=native: the file is of this kind of processor only.
    flags = _cpuinfo().get("flags", "") or platform.processor()
    parts = (source, version, " ".join(FLAGS).encode(), flags.encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    folder = Path(cache_dir)
    target = folder / f"ceilings-{key}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *FLAGS, str(SOURCE), "-o", name],
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            env={**os.environ, "TMPDIR": str(folder)},  # what it leaves when killed is found there
            preexec_fn=linux.die_with_parent,
        )
        if done.returncode != 0:
            raise CeilingsFailed(f"{compiler} failed: {done.stderr[-2000:]}")
        os.replace(name, target)  # whole or not at all, whoever else builds it
    except (OSError, subprocess.SubprocessError) as e:
        raise CeilingsFailed(f"{compiler} failed: {e}") from e
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def forked(work: Callable[[], MeasuredCeilings], limit_s: float) -> MeasuredCeilings:
    """Returns what ``work`` returns in a process of its own. Raises CeilingsFailed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            linux.die_with_parent()
            os.close(read)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # who forks it may have another
            signal.alarm(int(limit_s))
            os.write(write, json.dumps(work().to_json()).encode())
            os._exit(0)
        except BaseException as e:
            os.write(write, json.dumps({"error": f"{type(e).__name__}: {e}"}).encode())
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as f:
        text = f.read()
    _, status = os.waitpid(pid, 0)
    if not text:
        raise CeilingsFailed(f"the measuring process ended with status {status}")
    said = json.loads(text)
    if "error" in said:
        raise CeilingsFailed(said["error"])
    return MeasuredCeilings.from_json(said)


def _loaded(library: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library))
    pointer, number, count = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
    seconds, median = ctypes.c_double, ctypes.POINTER(ctypes.c_double)
    lib.kw_copy_rate.restype = lib.kw_read_rate.restype = lib.kw_fma_rate.restype = seconds
    lib.kw_copy_rate.argtypes = [pointer, pointer, number, count, count, count, seconds, median]
    lib.kw_read_rate.argtypes = [pointer, number, count, seconds, median]
    lib.kw_fma_rate.argtypes = [count, seconds, median]
    lib.kw_empty.argtypes = [pointer, pointer, number]
    lib.kw_empty.restype = None
    return lib


def _measure(library: Path, threads: int) -> MeasuredCeilings:
    lib, caches = _loaded(library), _caches()
    llc = caches.get(3) or caches.get(2) or 32 << 20
    # Two arrays of twice the last-level cache each, within a twentieth of the memory.
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = min(2 * llc, memory // 40)
    x, y = _aligned(each), _aligned(each)
    floats = each // 4
    # Half of the cache in all, so a quarter for each of the two arrays; several passes, since one
    # would be as short as waking the threads.
    small = max(llc // 4 // 4, 1024)
    inner = max(1, (16 << 20) // (4 * small))

    def rate(function: Any, *arguments: Any) -> Rate:
        typical = (ctypes.c_double * 2)()
        return Rate(function(*arguments, typical), typical[0], typical[1])

    rounds: list[dict[str, Rate]] = []
    for n in range(MOST):
        rounds.append(
            {
                "fma": rate(lib.kw_fma_rate, threads, 0.1),
                "cache": rate(lib.kw_copy_rate, x, y, small, threads, inner, 0, 0.1),
                "memory": max(
                    rate(lib.kw_copy_rate, x, y, floats, threads, 1, 0, 0.1),
                    rate(lib.kw_copy_rate, x, y, floats, threads, 1, 1, 0.1),
                ),
                "read": rate(lib.kw_read_rate, x, floats, threads, 0.1),
            }
        )
        if n + 1 >= LEAST and spread(rounds) <= QUIET:
            break
    rates = Ceilings(
        memory_gbs=best(rounds, "memory") / 1e9,
        cache_gbs=best(rounds, "cache") / 1e9,
        fp32_gflops=best(rounds, "fma") / 1e9,
        call_us=_call_seconds(lib, x, y) * 1e6,
        measured_at=int(time.time() * 1000),
        threads=threads,
        note=(
            f"best of plain and streaming copies of {2 * each >> 20} MiB, copies within "
            f"half of the last-level cache, independent fused multiply-adds of "
            f"{lib.kw_lanes()} floats; reading alone: {best(rounds, 'read') / 1e9:.1f} GB/s"
        ),
    )
    return MeasuredCeilings(rates, spread(rounds))


class Rate(NamedTuple):
    """What some passes reached."""

    fastest: float  # units a second, of the fastest pass
    typical: float  # likewise, of the median one
    awake: float  # the share of the time in which every thread had a core


def best(rounds: list[dict[str, Rate]], name: str) -> float:
    """Returns the rate of the fastest pass in any round."""
    return max(r[name].fastest for r in rounds)


def spread(rounds: list[dict[str, Rate]]) -> float:
    """Returns how far the typical pass stays below the best of all rounds, as a share from 0 to 1,
    or how long a thread waited for a core, where that is more.

    Of the rates the worst counts, since each is a ceiling; of the rounds the best, since one quiet
    round is enough to have met what the machine can do.
    """
    return min(
        max(1 - min(rate.typical / best(rounds, name), rate.awake) for name, rate in r.items())
        for r in rounds
    )


def _aligned(size: int) -> int:
    raw = ctypes.create_string_buffer(size + 64)
    _KEPT.append(raw)
    address = -(-ctypes.addressof(raw) // 64) * 64
    ctypes.memset(address, 1, size)
    return address


_KEPT: list[Any] = []  # the arrays of the forked process, which ends with them


def _call_seconds(lib: ctypes.CDLL, x: int, y: int) -> float:
    call = lib.kw_empty
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1000):
            call(x, y, 1)
        best = min(best, (time.perf_counter() - start) / 1000)
    return best


def _cpuinfo() -> dict[str, str]:
    """Returns the first processor's lines of /proc/cpuinfo."""
    out: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, colon, value = line.partition(":")
                if not colon:
                    break
                out[key.strip()] = value.strip()
    except OSError:
        pass  # not Linux as we know it
    return out


def _caches() -> dict[int, int]:
    """Returns the bytes of core 0's data caches by level."""
    out: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)([KM]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind == "Instruction" or size is None:
            continue
        out[level] = int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]]
    return out
