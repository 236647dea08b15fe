"""The allocator of large tensors, preloaded into a process of its own."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys

import pytest

from kwharness.base import paths
from kwharness.machine import allocator, gpu, toolchain

# Requests and frees at random; every block is filled, and checked when it is freed.
RANDOM = """
import ctypes, random
libc = ctypes.CDLL(None)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.realloc.restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def taken():  # KiB
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))

r = random.Random(7)
live, spans = [], 0
for i in range(3000):
    if live and r.random() < 0.5:
        at, size, byte = live.pop(r.randrange(len(live)))
        if r.random() < 0.1:
            size = min(size, 1 << 20)
            at = libc.realloc(at, size)
        for k in (0, size // 2, size - 1):
            assert ctypes.c_uint8.from_address(at + k).value == byte, (size, k)
        libc.free(at)
        if r.random() < 0.02:
            libc.kernelwright_release()
        continue
    size = int(2 ** r.uniform(4, 25))
    alignment = r.choice((16, 64, 64, 4096, 1 << 16))
    p = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(p), alignment, size) == 0
    assert p.value % alignment == 0
    for other, n, _ in live:
        assert other + n <= p.value or p.value + size <= other, "blocks overlap"
    ctypes.memset(p.value, i % 251, size)
    live.append((p.value, size, i % 251))
assert libc.posix_memalign(ctypes.byref(p), 24, 8) == 22
while live:
    libc.free(live.pop()[0])
libc.malloc_trim(0)  # what asks for more alignment than a page is the C library's
kept = taken()
libc.kernelwright_release()
assert kept > 100 << 10 and taken() < 20 << 10, (kept, taken())
print("done")
"""

REUSE = """
import resource
import torch
torch.set_num_threads(1)
x = torch.randn(1 << 20)
def job():
    return torch.exp(x * 2 + 1).double()
job()
at = job().data_ptr()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    assert job().data_ptr() == at
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

POISON = """
import sys
sys.path.insert(0, {harness!r})
import torch
from kwharness.machine import allocator
torch.ones(1 << 18)
allocator.poison(True)
print(hex(torch.empty(1 << 18).view(torch.int32)[12345]))
allocator.poison(False)
"""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not toolchain.compiler():
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("allocator")
    built = allocator._built(folder)
    assert built and allocator._built(folder) == built
    return {"PATH": os.environ["PATH"], "LD_PRELOAD": built}


def run(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_blocks_are_aligned_apart_and_keep_what_is_written(preloaded: dict[str, str]) -> None:
    assert run(RANDOM, preloaded) == "done"


def test_the_same_call_gets_the_same_memory_and_touches_no_new_page(
    preloaded: dict[str, str],
) -> None:
    assert int(run(REUSE, preloaded)) < 20


def test_what_is_given_out_is_poisoned_on_demand(preloaded: dict[str, str]) -> None:
    assert run(POISON.format(harness=paths.ROOT), preloaded) == "0x7f7f7f7f"


def test_an_object_that_others_may_have_written_is_not_used(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(tmp_path.stat().st_mode | stat.S_IWOTH)
    assert allocator._built(tmp_path) == ""


def test_without_a_compiler_nothing_is_preloaded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "compiler", lambda: "")
    assert allocator._built(tmp_path) == ""


def test_what_torch_keeps_of_a_gpus_memory_is_asked_for() -> None:
    def segment(kind: str, *blocks: tuple[str, int], stream: int = 0, pool: int = 0) -> dict:
        found = [{"state": state, "size": size} for state, size in blocks]
        return {
            "segment_type": kind,
            "stream": stream,
            "segment_pool_id": (0, pool),
            "blocks": found,
        }

    mib = 1 << 20
    segments = [
        segment("large", ("inactive", 20 * mib)),
        segment("large", ("active_allocated", 8 * mib), ("inactive", 12 * mib)),
        segment("large", ("active_allocated", 19 * mib), ("inactive", mib)),  # no request gets it
        segment("small", ("active_allocated", 512), ("inactive", 2 * mib - 512)),
        segment("large", ("inactive", 40 * mib), stream=5),
        segment("large", ("inactive", 60 * mib), pool=3),
    ]
    wanted = [20 * mib, 12 * mib, mib, mib - 512]
    assert gpu.requests_for(segments, 0) == wanted


# Has 64 MiB in small pages and asks for huge ones, or has 48 MiB of the heap in huge ones, and
# tells how many KiB lie in such then.
HUGE = """
import ctypes, mmap, re, sys
sys.path.insert(0, sys.argv[1])
from kwharness.machine import allocator

def huge():
    return sum(map(int, re.findall(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps").read())))

"""
COLLAPSED = """
m = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)  # wherever they come unasked for
for i in range(0, len(m), 4096):
    m[i] = i // 4096 % 251
m.madvise(mmap.MADV_HUGEPAGE)
before = huge()
print(allocator.collapse(float(sys.argv[2])))
assert all(m[i] == i // 4096 % 251 for i in range(0, len(m), 4096))
print(huge() - before)
"""
HEAP = """
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def fill():
    at = [libc.malloc(100 << 10) for _ in range(480)]
    for p in at:
        ctypes.memset(p, 1, 100 << 10)
    return at

with allocator.heap_in_huge_pages(64 << 20):
    kept = fill()
print(huge())
more = fill()  # the rest of what it got, and more
print(huge())
"""


def told(script: str, *args: str) -> list[int]:
    command = [sys.executable, "-c", HUGE + script, paths.ROOT, *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def test_memory_is_put_into_huge_pages_in_the_time_there_is() -> None:
    if not pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    assert told(COLLAPSED, "0")[0] == 0
    asked, kib = told(COLLAPSED, "60")
    assert asked >= 31
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    forbidden = "THP_enabled:\t0" in pathlib.Path("/proc/self/status").read_text()
    if release >= (6, 1) and not forbidden:
        assert kib > 0  # how many of them is for memory to decide


def test_a_heap_grows_in_huge_pages_for_a_while() -> None:
    if "[madvise]" not in allocator._read("/sys/kernel/mm/transparent_hugepage/enabled"):
        pytest.skip("huge pages are not for those who ask here")
    meanwhile, later = told(HEAP)
    if "THP_enabled:\t0" not in pathlib.Path("/proc/self/status").read_text():
        assert meanwhile > 0
    assert later - meanwhile <= 2 << 10  # what it touches since is in small ones
