"""What a candidate has built first, told from its text without running it.

A source of ``native`` that stands in the file, before which nothing can fail, is asked for wherever
the file is imported. So one that does not compile is known before any process imports the file.

The text is foreign: this module is for a sandboxed worker. What it cannot tell is None.
"""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any, NamedTuple

import kernelwright
from kwharness.base.built import BuildRequest
from kwharness.build import artifacts, form_native, forms

# What may be imported on the way: it is there, and importing it fails for nobody.
_PLAIN = frozenset(
    {"__future__", "collections", "ctypes", "dataclasses", "functools", "itertools"}
    | {"math", "os", "re", "sys", "typing"}
)
_TORCH = {
    "torch": frozenset({"Tensor", "nn"}),
    "torch.nn": frozenset({"functional"}),
    "torch.nn.functional": frozenset[str](),
}
_OURS = "kernelwright"
_LABEL = re.compile(r"\w{1,64}")


def first_request(text: str) -> BuildRequest | None:
    """Returns the request for the first source that the file has built."""
    try:
        call = _Reader().call(ast.parse(text.encode()).body)
        if call is None:
            return None
        artifacts.of_file(text)
        source = kernelwright._inlined(call.source, kernelwright.headers)
        return form_native.request_of(source, call.flags, call.name, call.language)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _Unknown(ValueError):
    """It takes more than reading."""


class _Call(NamedTuple):
    """The arguments of ``native``."""

    source: str
    language: str
    flags: tuple[str, ...]
    name: str


class _Reader:
    """Reads statements in their order."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}  # of names that are constants
        self._native: set[str] = set()  # names of kernelwright.native
        self._module: set[str] = set()  # names of kernelwright

    def call(self, body: list[ast.stmt]) -> _Call | None:
        """Returns the arguments of the first call of ``native``, None where a statement before it
        does more than is known here.
        """
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            elif isinstance(node, ast.Assign) and all(
                isinstance(t, ast.Name) for t in node.targets
            ):
                if isinstance(node.value, ast.Call):
                    return self._arguments(node.value)
                value = self._value(node.value)
                for target in node.targets:
                    assert isinstance(target, ast.Name)
                    self._bind(target.id)
                    self._values[target.id] = value
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                return self._arguments(node.value)
            else:
                return None
        return None

    def _bind(self, name: str) -> None:
        self._values.pop(name, None)
        self._native.discard(name)
        self._module.discard(name)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name not in _PLAIN and a.name not in _TORCH and a.name != _OURS:
                    raise _Unknown
                name = a.asname or a.name.partition(".")[0]
                self._bind(name)
                if a.name == _OURS:
                    self._module.add(name)
            return
        module = node.module or ""
        for a in node.names:
            if node.level or not _has(module, a.name):
                raise _Unknown
            name = a.asname or a.name
            self._bind(name)
            if module == _OURS:
                self._native.add(name)

    def _arguments(self, call: ast.Call) -> _Call:
        f = call.func
        ours = isinstance(f, ast.Name) and f.id in self._native
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name):
            ours = f.value.id in self._module and f.attr == "native"
        given = dict(zip(_Call._fields, map(self._value, call.args), strict=False))
        for k in call.keywords:
            if k.arg not in _Call._fields or k.arg in given:
                raise _Unknown
            given[k.arg] = self._value(k.value)
        if not ours or len(call.args) > len(_Call._fields) or "source" not in given:
            raise _Unknown
        flags, name = given.get("flags", ()), given.get("name") or "native"
        told = _Call(given["source"], given.get("language", "cpp"), flags, name)
        texts = isinstance(told.source, str) and isinstance(told.name, str)
        if not texts or not _LABEL.fullmatch(told.name) or isinstance(told.flags, str):
            raise _Unknown
        if told.language not in forms.SOURCES:
            raise _Unknown
        return told

    def _value(self, node: ast.expr) -> Any:
        """Returns the value of a constant. Raises _Unknown for what is none."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._values:
            return self._values[node.id]
        if isinstance(node, (ast.List, ast.Tuple)):
            return tuple(self._value(e) for e in node.elts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._value(node.left), self._value(node.right)
            if isinstance(left, str) and isinstance(right, str):
                return left + right
        raise _Unknown


def _has(module: str, name: str) -> bool:
    """Whether a module that may be imported has a name."""
    if module in _PLAIN:
        return hasattr(importlib.import_module(module), name)
    return name in _TORCH.get(module, ()) or (module == _OURS and name == "native")
