from __future__ import annotations

import random
import textwrap

import pytest

from kwharness.build import source

CANDIDATE = '''
"""Doc."""
import torch
import torch.nn as nn
from kernelwright import native

lib = native(source=r"""extern "C" void f(float* x) {}""")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
'''


def problems(text: str) -> list[str]:
    return source.parse(textwrap.dedent(text), "candidate").problems


def test_hash_ignores_what_does_not_matter():
    want = source.normalised_hash(CANDIDATE)
    spaced = CANDIDATE.replace("import torch\n", "# a comment\nimport torch   # another\n\n\n")
    assert source.normalised_hash(spaced) == want
    assert source.normalised_hash(CANDIDATE.replace('"""Doc."""', '"""Other."""')) == want
    assert source.normalised_hash(CANDIDATE.replace('"""Doc."""', "")) == want
    assert source.normalised_hash(CANDIDATE.replace("\n", "\r\n")) == want
    assert (
        source.normalised_hash(CANDIDATE.replace("torch.relu(x) * 2.0", "(torch.relu(\n x) * 2.0)"))
        == want
    )


@pytest.mark.parametrize(
    "old,new", [("2.0", "2"), ("2.0", "3.0"), ("relu", "sigmoid"), ("f(float* x)", "f(float* y)")]
)
def test_hash_changes_with_meaning(old, new):
    assert source.normalised_hash(CANDIDATE.replace(old, new)) != source.normalised_hash(CANDIDATE)


def test_hash_tells_true_from_one_and_shapes_apart():
    texts = [
        "x = 1",
        "x = True",
        "x = 1.0",
        "x = '1'",
        "x = b'1'",
        "x = (1,)",
        "x = [1]",
        "x = -1",
        "x = [1, [2]]",
        "x = [[1], 2]",
    ]
    assert len({source.normalised_hash(t) for t in texts}) == len(texts)


def test_good_candidate_has_no_problem():
    got = source.parse(CANDIDATE, "candidate")
    assert got.problems == []
    assert (got.language, got.form) == ("cpp", "native")


@pytest.mark.parametrize(
    "line",
    [
        "import os, sys, ctypes, subprocess",
        "from . import x",
        "from torch import *",
        "exec('1'); open('/etc/passwd'); __import__('os')",
        "f = torch.compile(lambda x: x)",
        "x = (1).__class__.__subclasses__",
        "x = '" + "QUJD" * 400 + "'",
        "def f(input, open, exec): return input.eval().compile",
    ],
)
def test_text_convicts_nobody(line: str) -> None:
    assert problems(f"import torch\n{line}\nclass ModelNew: pass\n") == []


@pytest.mark.parametrize(
    "call,lazy",
    [
        ("lib = native(source='x')", False),
        ("def f(): return native(source='x')", True),
        ("class ModelNew:\n    lib = native(source='x')", True),
        ("build = native\nlib = build(source='x')", True),
        ("try:\n    lib = native(source='x')\nexcept Exception:\n    lib = None", False),
    ],
)
def test_where_something_is_built_is_seen(call: str, lazy: bool) -> None:
    text = f"from kernelwright import native\n{call}\nclass ModelNew: pass\n"
    assert source.parse(text, "candidate").lazy is lazy


@pytest.mark.parametrize(
    "forward,given",
    [
        ("def forward(self, x, fn=work): ...", "fn"),
        ("def forward(self, x, eps=(1, (2,))[0], fn: Callable[[T], T] = work): ...", "fn"),
        ("def forward(self, x,  # ) and fn=other\n        s='fn=other)', f=work): ...", "f"),
        ("def forward(self, x, *rest, eps=1, fn=work, **more): ...", "fn"),
        ("def forward(self, x, fn=work, /, other=1): ...", ""),
        ("def forward(self, x, fn=None): ...", ""),
        ("def forward(self, x, fn=torch.relu): ...", ""),
        ("def forward(self, x, fn=missing): ...", ""),
        ("async def forward(self, x, fn=work): ...", ""),
        ("def backward(self, x, fn=work): ...", ""),
        ('def forward(self, x):\n        """def forward(self, x, fn=work): ..."""', ""),
        ("def forward(self, x, fn=other): ...\n    def forward(self, x, g=work): ...", "g"),
    ],
)
def test_the_function_that_a_reference_is_given(forward: str, given: str) -> None:
    text = f"def work(x): ...\n\n\nclass Model(nn.Module):\n    {forward}\n"
    assert source.parse(text, "reference").given == given
    assert source.parse(text, "candidate").given == ""
    aside = text.replace("class Model(", "class Other(")
    assert source.parse(aside, "reference").given == ""


def test_missing_names():
    assert problems("import torch\n") == ["the source defines no class ModelNew"]
    assert source.parse("def get_inputs(): pass", "reference").problems == [
        "the source defines no class Model"
    ]
    assert source.parse("Model = None\ndef get_inputs(): pass", "reference").problems == []


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "-" * 100_000 + "1", "a" + ".b" * 50_000, "x = " + "[" * 150 + "]" * 150, "x\0y", "\ud800", "x = 'a" * 3,  # noqa: E501
     "a" * (5 << 20), "\x0c" * 1000, "if 1:\n\tx\n        y", "x = 1" + "\n" * 100_000, "# coding: utf-7\n+AGE-", "0" * 5000,  # noqa: E501
     "x = " + "9" * 10_000],
)  # fmt: skip
def test_hostile_text_gets_an_answer(text):
    for what in ("candidate", "reference"):
        got = source.parse(text, what)
        assert isinstance(got.problems, list)
        assert all(isinstance(p, str) and len(p) < 2000 for p in got.problems)


def test_random_text_gets_an_answer():
    rng = random.Random(7)
    letters = "abc()[]{}:=\n\t '\"\\#.,*@0123é"
    for _ in range(300):
        source.parse("".join(rng.choice(letters) for _ in range(rng.randrange(80))), "candidate")


def test_languages():
    triton = source.parse("import triton.language as tl\nclass ModelNew: pass", "candidate")
    assert triton.language == "triton"
    inline = "from torch.utils.cpp_extension import load_inline\nm = load_inline(name='a', cpp_sources='')\nclass ModelNew: pass"  # noqa: E501
    got = source.parse(inline, "candidate")
    assert (got.language, got.form) == ("cpp", "load_inline")
    assert (
        source.parse(inline.replace("cpp_sources=''", "cuda_sources='x'"), "candidate").language
        == "cuda"
    )
