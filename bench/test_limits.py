"""What is too large in the harness is found, and exceptions are held to."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def loaded() -> Any:
    """Returns .ci/limits.py as a module."""
    spec = importlib.util.spec_from_file_location("limits", ROOT / ".ci" / "limits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["limits"] = module
    spec.loader.exec_module(module)
    return module


limits = loaded()
FIELDS = [f"    a{i}: int = 0\n" for i in range(15)]
CLASS = "class A:\n" + "".join(FIELDS)
SETS = "    def f(self, {}):\n        self.{} = 1\n"
LINES = ["    x = 1\n"] * 59


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n" + "".join(LINES), []),
        ("def f():\n" + "".join(LINES) + "    y = 1\n", ["a.py:f lines: 61 lines; 60 may be"]),
        ("x = 1\n" * 500, []),
        ("x = 1\n" * 501, ["a.py: 501 lines; 500 may be"]),
        (CLASS + SETS.format("b, c, *d, e, g", "a1"), []),
        (CLASS + SETS.format("b", "b"), ["a.py:A attributes: 16 attributes; 15 may be"]),
        ("def f(a, b, c, d, e, g): pass\n", []),
        (
            "if True:\n    def f(a, b, /, c, d, *, e, g, h): pass\n",
            ["a.py:f parameters: 7 parameters; 6 may be"],
        ),
    ],
)
def test_what_is_too_large_is_found(text: str, found: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text(text)
    assert limits.problems(tmp_path, {}) == found
    for key in ("a.py:*", *(one.rpartition(": ")[0] for one in found)):
        said = limits.problems(tmp_path, {key: "it is one thing"})
        assert said == (
            [] if found else ["a.py:*: is within the limits: take it off .ci/limits.toml"]
        )


def test_an_exception_has_a_reason(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" * 501)
    assert limits.problems(tmp_path, {"a.py": " "}) == ["a.py: its reason is missing"]
