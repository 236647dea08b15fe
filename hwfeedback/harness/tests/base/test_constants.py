"""What Go and Python both go by is written down once: in a ``constants.toml``, of the harness or of
the training package.
"""

from __future__ import annotations

import ast
import functools
import operator
import pathlib
import re
import subprocess
import tomllib
from typing import Any

import pytest

from kwharness.base import paths
from kwharness.base.constants import SHARED
from kwharness.workers import loaded

ROOT = pathlib.Path(paths.ROOT).parents[1]
FILES = ("hwfeedback/harness/kwharness/base/constants.toml", "trainer/rl/constants.toml")
UNITS = {"Millisecond": 1e-3, "Second": 1.0, "Minute": 60.0, "Hour": 3600.0}

# Constants of one name and one value that mean different things.
UNRELATED = {
    "grace": "a policy's server that is to end; processes of a stage whose other one has ended",
    "maxanswer": "a strategy's answer in the record; what a program of a candidate's prints",
    "maxname": "an episode's name; a file's in an archive",
    "maxoperators": "a task's in a prompt; a forward's in a profile",
}


@functools.cache
def sources(ending: str) -> dict[str, str]:
    """Returns the text of every source that is no test, by its path."""
    named = subprocess.run(
        ["git", "ls-files", f"*{ending}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [n for n in named if not re.search(r"_test\.go$|(^|/)(tests|testdata|fuzz|bench)/", n)]
    return {n: (ROOT / n).read_text() for n in ours if (ROOT / n).exists()}


def shared() -> dict[str, Any]:
    return {
        key: value
        for name in FILES
        for key, value in tomllib.loads((ROOT / name).read_text()).items()
        if not isinstance(value, dict)
    }


def number(text: str) -> float | None:
    """Returns what an expression of numbers comes to; None where it is none."""
    text = re.sub(r"time\.(\w+)", lambda m: repr(UNITS.get(m[1], m[0])), text)
    operators = {
        ast.LShift: operator.lshift,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Add: operator.add,
        ast.Sub: operator.sub,
    }

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return operators[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def defined(ending: str) -> dict[tuple[str, float], str]:
    """Returns the file of each number that has a name, by both; case and signs do not count."""
    pattern, comment = (
        (r"^(?:const |var |\t)([A-Za-z]\w*)(?: \w+)? += +(.+)$", "//")
        if ending == ".go"
        else (r"^(_?[A-Z][A-Z_0-9]+)(?:: \w+)? = (.+)$", "#")
    )
    found = {}
    for path, text in sources(ending).items():
        for name, said in re.findall(pattern, text, re.M):
            value = number(said.split(comment)[0])
            if value is not None:
                plain = re.sub(r"_S$|_MS$|_BYTES$|_|Bytes$|Seconds$", "", name).lower()
                found[plain, float(value)] = path
    return found


def test_no_number_of_one_name_is_written_in_both_languages() -> None:
    ours, theirs = defined(".go"), defined(".py")
    assert len(ours) > 300 and len(theirs) > 300  # the patterns still find them
    twice = {name: (ours[name, v], theirs[name, v]) for name, v in ours.keys() & theirs.keys()}
    assert {n: t for n, t in twice.items() if n not in UNRELATED} == {}


@pytest.mark.parametrize("ending", [".go", ".py"])
def test_no_shared_sentence_is_written_again(ending: str) -> None:
    sentences = [v for v in shared().values() if isinstance(v, str)]
    assert len(sentences) > 4
    again = [
        (path, s) for path, text in sources(ending).items() for s in sentences if f'"{s}"' in text
    ]
    assert again == []


def test_every_key_is_read_in_both_languages() -> None:
    python = "".join(sources(".py").values())
    go = (ROOT / "constants.go").read_text()
    for name in FILES:
        for key in tomllib.loads((ROOT / name).read_text()):
            held_below = key == "gpu_baselines"
            assert held_below or re.search(rf"SHARED\.{key}\b", python), key
            field = re.search(rf'^\t(\w+) +\S+ +`toml:"{key}"', go, re.M)
            assert field, f"{key} of {name}"
            asks = rf"(Shared|Training|\bc)\.{field[1]}\b"
            assert any(re.search(asks, t) for t in sources(".go").values()), f"{key}: no Go asks"


def test_every_baseline_can_be_compiled() -> None:
    eager, *compiled = SHARED.baselines + SHARED.gpu_baselines
    assert eager == "eager" and set(compiled) == set(loaded.COMPILED)
