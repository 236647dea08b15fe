"""Kinds of devices: no other package compares them. tests/referee/test_seams.py adds one."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from kwharness.base import paths
from kwharness.machine import device

ROOT = pathlib.Path(paths.ROOT)


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
