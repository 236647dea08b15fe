"""Kinds of devices: one more is a class and a row, and no other package compares kinds."""

from __future__ import annotations

import ast
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

from kwharness.base import paths
from kwharness.machine import device

ROOT = pathlib.Path(paths.ROOT)
ROW = '    "cpu": "kwharness.machine.device:Cpu",\n'
TOY = """
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
CANDIDATE = '''import torch
import torch.nn as nn

import kernelwright

lib = kernelwright.native("""
extern "C" void relu(const float* x, float* y, long n) {
  for (long i = 0; i < n; i++) y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.relu(x, y, x.numel())
        return y
'''


@pytest.fixture
def toys(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> Iterator[Evaluator]:
    """An evaluator on a kind of device more: its class in a file, and its row."""
    harness = tmp_path / "harness"
    shutil.copytree(ROOT, harness, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    (harness / "kwharness" / "machine" / "toy.py").write_text(TOY)
    registry = harness / "kwharness" / "machine" / "device.py"
    row = '    "toy": "kwharness.machine.toy:Toy",\n'
    assert ROW in registry.read_text()
    registry.write_text(registry.read_text().replace(ROW, ROW + row))
    # The same, in this process, which is the referee.
    spec = importlib.util.spec_from_file_location(
        "kwharness.machine.toy", harness / "kwharness" / "machine" / "toy.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setitem(device.KINDS, "toy", "kwharness.machine.toy:Toy")
    at = tempfile.mkdtemp(prefix="kernelwright-server-") + "/socket"
    process = listening(at, 60.0, harness, more=FORKS_OFTEN)
    monkeypatch.setattr(evaluating, "fork_server", lambda *, gpu: connect(at, process.pid))
    evaluator = Evaluator(new_cache(tmp_path_factory))
    evaluator.place["device"] = "toy:0"
    yield evaluator
    evaluator.close()
    process.terminate()
    process.wait(120)
    shutil.rmtree(pathlib.Path(at).parent)


@pytest.mark.alone
def test_a_kind_of_device_is_a_class_and_a_row(toys: Evaluator) -> None:
    more: dict[str, Any] = {"want_baselines": ["eager"], "time": True}
    v = toys.verdict(TASK, CANDIDATE, built=True, **more)
    assert v["status"] == "correct", v["reason"]
    assert v["candidate_ms"] > 0 and v["baselines"]["eager"] > 0
    assert vars(device.class_of("toy"))["made"], "its memory is not its own"
    v = toys.verdict(TASK, CANDIDATE.replace("> 0 ||", "> 1 ||"), built=True, **more)
    assert v["status"] == "wrong"


def test_what_has_no_row_is_no_device() -> None:
    for kind in ("", "toy", "cuda:0"):
        with pytest.raises(KeyError):
            device.class_of(kind)


# Where these are words of an exported file, torch's names in its user's interpreter, or a language.
WORDS = {
    "build/form_native.py", "export/docstring.py", "export/guard.py", "standalone/usage.py",
}  # fmt: skip


def compared(tree: ast.AST) -> Iterator[str]:
    """Yields what a file compares a device's kind by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "language" not in ast.unparse(node):
            for side in (node.left, *node.comparators):
                text = ast.unparse(side)
                words = [n.value for n in ast.walk(side) if isinstance(n, ast.Constant)]
                named = [w for w in words if w in device.KINDS]
                if named or text.endswith(("device.kind", "memory.kind", "device.type")):
                    yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            if ast.unparse(node.args[1]).rpartition(".")[2] in ("Cpu", "Gpu"):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in ("on_gpu", "on_cpu"):
                yield f"{node.lineno}: {name}"


@pytest.mark.parametrize(
    "text",
    [
        "if self.device.kind == 'cuda': pass",
        "x = 1 if context.device.kind != other else 2",
        "if t.device.type not in ('cpu', 'cuda'): pass",
        "if isinstance(context.device, devices.Gpu): pass",
        "if context.on_gpu: pass",
        "if place.get('device') == 'cuda': pass",
    ],
)
def test_a_comparison_is_seen(text: str) -> None:
    assert list(compared(ast.parse(text)))


def test_no_other_package_compares_kinds() -> None:
    found = [
        f"{name}:{what}"
        for path in sorted((ROOT / "kwharness").rglob("*.py"))
        if (name := str(path.relative_to(ROOT / "kwharness"))) not in WORDS
        and not name.startswith("machine/")
        for what in compared(ast.parse(path.read_text()))
    ]
    assert not found, "ask the device: machine/device.py has what differs"
