"""Whatever a stranger's reference says, comparing it comes to an end, in little memory."""

from __future__ import annotations

import itertools
import os
import random
import resource
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import alike
import bounded

SECONDS, BYTES = 60, 1 << 30  # of a processor, and of memory, for all that one test reads


def forward(*lines: str, before: str = "", init: str = "pass") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    made = "".join(f"        {line}\n" for line in init.splitlines())
    return f"import torch\nimport torch.nn as nn\n{before}\n\nclass Model(nn.Module):\n    def __init__(self):\n{made}\n    def forward(self, x, y):\n{body}        return x\n"


def nested(depth: int, line: str) -> list[str]:
    return [" " * 4 * i + f"for i{i} in ({'y, ' * 60}):" for i in range(depth)] + [
        " " * 4 * depth + line
    ]


def modules(n: int) -> str:
    """Lists of modules that each hold the one before twice."""
    lines = ["l0 = []", "l0.append(nn.ReLU())"]
    for i in range(1, n):
        lines += [f"l{i} = []"] + [f"l{i}.append(nn.Sequential(*l{i - 1}))"] * 2
    return "\n".join([*lines, f"self.net = nn.Sequential(*l{n - 1})"])


ALIASES = "\n".join(["a0 = torch", *(f"a{i} = a{i - 1}.nn" for i in range(1, 12_000))])
CHAIN = ["z = y", *["z = torch.sin(z)"] * 380, "y = torch.tanh(z) + 1", "z = torch.cos(z)"]
HOSTILE = {
    "tuples in tuples": forward(*["x = (x, x)"] * 70),
    "lists in lists": forward(*["x = [x, x, 0]"] * 70),
    "lists without tensors": forward("x = ()", *["x = (x, x)"] * 70),
    "a list in itself": forward("z = [x]", "z.append(z)", "x = torch.cat(z)"),
    "dictionaries": forward(*["x = {0: x, 1: x}"] * 70),
    "texts": forward(*['x = f"{x}{x}"'] * 70),
    "writing into itself": forward(*["x[0] = x"] * 70),
    "choices": forward(*["x = (x if y else (y, x))"] * 70),
    "branches": forward(*["if y:\n            x = (x, y, x)"] * 70),
    "loops that repeat": forward(*["while y:\n            x = (x, x)"] * 70),
    "calls within calls": forward("x = f(x)", before="def f(x):\n    return f(x) + f(x)\n"),
    "methods within methods": forward("x = self.forward(x, x) * self.forward(x, y)"),
    "loops within loops": forward(*nested(8, "x = torch.sin(x)")),
    "modules within modules": forward("x = self.net(x)", init=modules(70)),
    "names of names": forward("x = a9.relu(x)", before=ALIASES),
    "many names, many branches": forward(
        *(f"v{i} = torch.sin(x)" for i in range(4000)), *["if y: pass"] * 4000
    ),
    "wide": forward(f"z = torch.cat([{'y, ' * 3000}])", *["x = torch.cat([z, x])"] * 3000),
    "wide twice": forward(*[f"x = torch.cat([{'x, ' * 500}])"] * 60),
    "deep": forward(*["x = torch.sin(x)"] * 5000),
    "deep in a text": forward("x = " + "torch.sin(" * 80 + "x" + ")" * 80),
    "a product that looks like another one": forward(*CHAIN, *["x = z * y"] * 5000),
    "attributes": forward("x = x" + ".T" * 2000),
    "letters": forward("x = self." + "a" * 200_000 + "(x)"),
    "numbers": forward(f"x = torch.pad(x, {'(' * 60}1{',)' * 60})", "x = x ** 1e999"),
    "an append of nothing": forward("z = [x]", "z.append()"),
}


def spared(read: Callable[[], object]) -> bool:
    """Returns whether something ends in a process that may use little."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
        code = 1
        try:
            read()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def read(source: str) -> alike.Canonical | None:
    """Reads a reference to its end: its tree is used, too."""
    try:
        found = alike.canonical(source)
    except alike.Unreadable:
        return None
    assert found.size <= bounded.BIG + 1
    assert alike.similarity(found, found) == 1
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reference_comes_to_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "WORK", 300_000)
    assert spared(lambda: read(HOSTILE[name]))


def test_the_most_work_that_is_allowed_is_little() -> None:
    assert spared(lambda: read(HOSTILE["calls within calls"]))


STATEMENTS = """
    x = (x, x)|x = [y, x, y]|y = torch.cat([x, y])|x = x + y|y = x * torch.sigmoid(x)|x[0] = y
    x = f(x, y)|z = x if y else z|z.append(x)|x = z|x = {0: x, 1: z}
    x = torch.max(x, dim=1)[0]|y = (x * x).mean(-1) + 1|x = y.T @ x|x, y = y, (x, z)|x = -x / y
    y = nn.Sequential(nn.ReLU(), nn.Linear(3, 4))(x)|x = self.net(x, y)|x = [v for v in x]
    x = (lambda v: (v, v))(x)|x = x[y, z]|z = [x, [z]]|x -= y|x = y.split(2)|del y|x: int = (x, y)
"""
HEADS = ["for z in (x, y, x):", "while x:", "if x:", "with x:", "for z in x:", "try:"]


def program(rng: random.Random) -> str:
    """Writes a reference of statements that hand values on in every way."""
    lines, indent = [], 0
    every = [s.strip() for line in STATEMENTS.split("\n") for s in line.split("|") if s.strip()]
    for _ in range(rng.randrange(10, 120)):
        if indent < 6 and rng.random() < 0.15:
            lines.append("    " * indent + rng.choice(HEADS[:5]))
            indent += 1
            lines.append("    " * indent + rng.choice(every))
        elif indent and rng.random() < 0.2:
            indent -= 1
        lines.append("    " * indent + rng.choice(every))
    helper = "def f(x, y):\n    z = [x]\n    x = torch.sin(x)\n    return (x, y, z)\n"
    return forward("z = [x]", *lines, before=helper, init=modules(rng.randrange(1, 30)))


def test_random_references_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "WORK", 100_000)

    def read_many() -> None:
        rng = random.Random(7)
        known = [found for _ in range(60) if (found := read(program(rng)))]
        assert len(known) > 5
        for a, b in itertools.pairwise(known):
            assert 0 <= alike.similarity(a, b) <= 1

    assert spared(read_many)


def test_trees_of_many_branches_are_compared_in_little_time() -> None:
    def caterpillar(label: str) -> alike.Canonical:
        tree: alike.Tree = (label, ())
        for _ in range(39):
            tree = ("add", (("sin", (("in", ()),)), tree))
        return alike.Canonical(tree)

    one, other = caterpillar("cos"), caterpillar("tan")
    assert one.size <= alike.LARGE and one.ordered.cells**2 > alike.CELLS
    assert 0.9 < alike.similarity(one, other) < 1


def test_honest_references_are_far_from_the_bounds() -> None:
    blocks = "\n".join(
        f"y{i} = torch.relu(self.a(x) + torch.sigmoid(self.b(x)) * x)\nx = torch.cat([x, y{i}], 1)"
        for i in range(30)
    )
    source = forward(
        *blocks.splitlines(), init="self.a = nn.Linear(3, 3)\nself.b = nn.Linear(3, 3)"
    )
    assert read(source)
