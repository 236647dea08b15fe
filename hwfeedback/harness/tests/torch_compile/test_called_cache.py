"""What of Triton's kernels needs no GPU. The rest is in test_gpu.py."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess

import pytest
from evaluating import Evaluator

from kwharness.build import artifacts
from kwharness.torch_compile import called_cache
from kwharness.workers import stand_in_compiler

TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
CANDIDATE = TASK.replace("class Model(", "class ModelNew(").replace(
    "import torch\n", "import torch\nimport triton\n", 1
)


def test_on_the_cpu_it_is_said(evaluator: Evaluator) -> None:
    v = evaluator.verdict(TASK, CANDIDATE, built=True)
    assert v["status"] == "rejected" and "the device is the CPU" in v["reason"], v["reason"]
    assert (v["language"], v["build"]["form"]) == ("triton", "triton")


def test_what_is_compiled_moves_to_another_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, to = tmp_path / "a", tmp_path / "b"
    # Where torch has compiled in this process it has named a folder that is everybody's.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(at))
    assert called_cache.packed() == b""
    (at / "HASH").mkdir(parents=True)
    (at / "HASH" / "k.json").write_text("{}")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    library = f"launcher{suffix}"
    # Any library will do.
    spec = importlib.util.find_spec("_ctypes") or importlib.util.find_spec("_struct")
    assert spec is not None and spec.origin is not None
    shutil.copy(spec.origin, at / "HASH" / library)
    data = called_cache.packed()
    assert data == called_cache.packed()

    monkeypatch.setenv("TRITON_CACHE_DIR", str(to))
    fd = os.memfd_create("kernels")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        called_cache.unpack(fd)
    finally:
        os.close(fd)
    assert (to / "HASH" / "k.json").read_text() == "{}"
    assert (to / "HASH" / library).is_symlink()  # to memory: no file there may be loaded
    assert (to / "HASH" / library).read_bytes() == pathlib.Path(spec.origin).read_bytes()


def test_triton_starts_its_programs_beside_the_stand_in_for_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an exported file, whose own compiler was run before."""
    monkeypatch.setattr(subprocess, "run", subprocess.run)
    stand_in_compiler.stand_in_for_the_compiler(artifacts.Objects())
    done = subprocess.run(["echo", "kernel.ptx", "-o", "kernel.cubin"], capture_output=True)
    assert done.stdout == b"kernel.ptx -o kernel.cubin\n"


def test_too_much_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "large").write_bytes(b"x" * 100)
    monkeypatch.setattr(called_cache, "MAX_BYTES", 99)
    with pytest.raises(ValueError, match="over 0 MB"):
        called_cache.packed()
