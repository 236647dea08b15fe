"""A kind of device more, and a language more that compiles when it is called: each is a file and a
row, in a copy of the harness that has verdicts on them.
"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import evaluating
import pytest
from evaluating import Evaluator, new_cache
from process_layer import FORKS_OFTEN, connect, listening

from kwharness.attribution import trace
from kwharness.base import paths
from kwharness.build import forms
from kwharness.build.form import Form
from kwharness.machine import device
from kwharness.torch_compile import called_languages

ROOT = pathlib.Path(paths.ROOT)
DEVICE = """
from kwharness.base.tensors import Block
from kwharness.machine.device import Cpu


class Toy(Cpu):
    kind = "toy"
    has_driver = slow_to_begin = outlasts_candidates = True
    made: list[int] = []

    def create(self, size: int, name: str = "tensors") -> Block:
        self.made.append(size)
        return super().create(size, name)
"""
# C, compiled by the first call of a function.
LANGUAGE = """
import ctypes
import hashlib
import os
import subprocess
import sys
import types

from kwharness.torch_compile.called_language import CalledLanguage, nothing


class ToyError(Exception):
    pass


def folder():
    return os.path.expanduser("~/.toy")


class Kernel:
    def __init__(self, name, text):
        self.__name__, self.text = name, text

    def __call__(self, *arguments):
        self.run(*arguments)

    def run(self, *arguments):
        name = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        path = os.path.join(folder(), name + ".so")
        if not os.path.exists(path):
            os.makedirs(folder(), exist_ok=True)
            with open(os.path.join(folder(), name + ".c"), "w") as f:
                f.write(self.text)
            command = ["cc", "-O2", "-shared", "-fPIC", f.name, "-o", path]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ToyError(done.stderr)
        call = getattr(ctypes.CDLL(path), self.__name__)
        call(*(ctypes.c_long(a) if isinstance(a, int) else ctypes.c_void_p(a.data_ptr())
               for a in arguments))


def stand_in():
    Kernel.run = nothing


sys.modules["toylang"] = types.ModuleType("toylang")
sys.modules["toylang"].Kernel = Kernel
TOY = CalledLanguage(
    kind="toylang",
    name="Toy",
    module="toylang",
    on_cores=True,
    folder=folder,
    function=lambda: Kernel.run,
    stand_in=stand_in,
    errors=frozenset(["ToyError"]),
)
"""
FILES = {
    "machine/toy.py": DEVICE,
    "torch_compile/toy_language.py": LANGUAGE,
}
ROWS = {
    "machine/device.py": (
        '    "cpu": "kwharness.machine.device:Cpu",\n',
        '    "toy": "kwharness.machine.toy:Toy",\n',
    ),
    "torch_compile/called_languages.py": (
        "LANGUAGES = (triton_language.TRITON,)\n",
        "from kwharness.torch_compile import toy_language\nLANGUAGES += (toy_language.TOY,)\n",
    ),
}
TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
FUNCTION = """void relu(const float* x, float* y, long n) {
  for (long i = 0; i < n; i++) y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;
}"""
CANDIDATE = """import torch
import torch.nn as nn

BUILT


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        CALL(x, y, x.numel())
        return y
"""
NATIVE = CANDIDATE.replace(
    "BUILT", f'import kernelwright\n\nlib = kernelwright.native("""extern "C" {FUNCTION}""")'
).replace("CALL", "lib.relu")
CALLED = CANDIDATE.replace(
    "BUILT", f'import toylang\n\nrelu = toylang.Kernel("relu", """{FUNCTION}""")'
).replace("CALL", "relu")
MORE: dict[str, Any] = {"want_baselines": ["eager"], "time": True, "built": True}


def imported(harness: pathlib.Path, name: str, m: pytest.MonkeyPatch) -> Any:
    """Imports a file of the copy in this process, under the name that it has there."""
    module_name = "kwharness." + name.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_file_location(module_name, harness / "kwharness" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    m.setitem(sys.modules, module_name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    """An evaluator with both: their workers are forked from the copy, the referee is this."""
    harness = tmp_path_factory.mktemp("copy") / "harness"
    shutil.copytree(ROOT, harness, ignore=shutil.ignore_patterns("tests", "fuzz", "__pycache__"))
    for name, text in FILES.items():
        (harness / "kwharness" / name).write_text(text)
    for name, (after, row) in ROWS.items():
        path = harness / "kwharness" / name
        assert after in path.read_text()
        path.write_text(path.read_text().replace(after, after + row))
    at = tempfile.mkdtemp(prefix="kernelwright-server-") + "/socket"
    process = listening(at, 60.0, harness, more=FORKS_OFTEN)
    with pytest.MonkeyPatch.context() as m:
        imported(harness, "machine/toy.py", m)
        m.setitem(device.KINDS, "toy", "kwharness.machine.toy:Toy")
        toy = imported(harness, "torch_compile/toy_language.py", m).TOY
        m.setattr(called_languages, "LANGUAGES", (*called_languages.LANGUAGES, toy))
        m.setattr(forms, "FORMS", (*forms.FORMS, Form(toy.kind, module=toy.module)))
        m.setattr(forms, "KINDS", (*forms.KINDS, toy.kind))
        m.setattr(trace, "KERNELS", {*trace.KERNELS, toy.kind})
        m.setattr(evaluating, "fork_server", lambda *, gpu: connect(at, process.pid))
        evaluator = Evaluator(new_cache(tmp_path_factory))
        yield evaluator
        evaluator.close()
    process.terminate()
    process.wait(120)
    shutil.rmtree(pathlib.Path(at).parent)


@pytest.mark.alone
def test_a_kind_of_device_is_a_class_and_a_row(
    toys: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(toys.place, "device", "toy:0")
    v = toys.verdict(TASK, NATIVE, **MORE)
    assert v["status"] == "correct", v["reason"]
    assert v["candidate_ms"] > 0 and v["baselines"]["eager"] > 0
    assert vars(device.class_of("toy"))["made"], "its memory is not its own"


@pytest.mark.alone
def test_a_language_that_compiles_when_it_is_called_is_a_row(toys: Evaluator) -> None:
    v = toys.verdict(TASK, CALLED, **MORE)
    assert v["status"] == "correct", v["reason"]
    assert (v["language"], v["build"]["form"]) == ("toylang", "toylang")
    assert v["candidate_ms"] > 0 and v["metrics"]["custom_calls"] >= 1
    assert v["work"]["custom"] > 0.5
    for change, status, says in (
        (("void relu", "void relu relu"), "build_failed", "a Toy kernel does not compile"),
        (("        return y", "        return torch.relu(x)"), "rejected", "covers no operator"),
    ):
        v = toys.verdict(TASK, CALLED.replace(*change), **{**MORE, "time": False})
        assert v["status"] == status and says in v["reason"], v["reason"]
