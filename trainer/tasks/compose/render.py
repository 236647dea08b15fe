"""Writes a composed task as a reference file in KernelBench's form."""

from __future__ import annotations

import math
from typing import Any

from composer import Drawn
from naming import squash
from step import ROLES, Step, Tensor, forward_names, resolve

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# A module's parameters that the constructor passes on; others are written where they are used.
MAX_PASSED = 6


def spelled(path: str) -> str:
    """Returns a path as it is written under the file's imports."""
    for prefix, short in (("torch.nn.functional.", "F."), ("torch.nn.", "nn.")):
        if path.startswith(prefix):
            return short + path.removeprefix(prefix)
    return path.replace("torch.functional.", "torch.")


class Writer:
    """Writes one task."""

    def __init__(self, task: Drawn, plain_operators: bool) -> None:
        self.task, self.plain = task, plain_operators
        self.made: list[str] = []  # lines of __init__
        self.passed: dict[str, Any] = {}  # parameters of __init__ to their values
        self.inputs: list[tuple[str, str, str]] = []  # further ones: name, shape, how it is drawn
        self.taken: set[str] = {"x", "self", *task.names}

    def write(self) -> str:
        before = [self.task.shape, *self.task.outputs]
        lines = [self.step(s, x) for s, x in zip(self.task.steps, before, strict=False)]
        names = ", ".join(["x", *(n for n, _, _ in self.inputs)])
        parts = [
            self.head(any("F." in line for line in lines)),
            self.model(lines, names),
            self.constants(),
        ]
        return "\n\n".join(parts) + "\n"

    def head(self, functional: bool) -> str:
        lines = ["import torch", "import torch.nn as nn"]
        return "\n".join(lines + ["import torch.nn.functional as F"] * functional) + "\n"

    def model(self, lines: list[str], names: str) -> str:
        made = self.made or ["pass"]
        arguments = "".join(f", {n}" for n in self.passed)
        body = [
            "        super().__init__()",
            *(f"        {line}" for line in made if line != "pass"),
        ]
        if self.task.dtype != "float32":
            body.append(f"        self.to(torch.{self.task.dtype})")
        about = ", then ".join(spelled(s.path) for s in self.task.steps)
        shape, out = self.dims(self.task.shape), self.dims(self.task.outputs[-1])
        return "\n".join(
            [
                "class Model(nn.Module):",
                '    """',
                f"    Applies {about}.",
                '    """',
                "",
                f"    def __init__(self{arguments}):",
                *body,
                "",
                f"    def forward(self, {names}):",
                '        """',
                "        Args:",
                f"            x: tensor of shape {shape}",
                *(f"            {n}: tensor of shape {shape}" for n, shape, _ in self.inputs),
                "",
                "        Returns:",
                f"            tensor of shape {out}",
                '        """',
                *(f"        x = {line}" for line in lines),
                "        return x",
                "",
            ]
        )

    def constants(self) -> str:
        constants = [f"{n} = {v}" for n, v in zip(self.task.names, self.task.shape, strict=True)]
        draw = {
            "any": "torch.randn({})",
            "positive": "torch.rand({}) + 0.1",
            "unit": "torch.rand({}) * 0.9 + 0.05",
            "above_one": "torch.rand({}) + 1.1",
        }[self.task.domain]
        first = self.typed(draw.format(", ".join(self.task.names)))
        given = ", ".join([first, *(how for _, _, how in self.inputs)])
        values = ", ".join(self.literal(v) for v in self.passed.values())
        return "\n".join(
            [
                *constants,
                "",
                "",
                "def get_inputs():",
                f"    return [{given}]",
                "",
                "",
                "def get_init_inputs():",
                f"    return [{values}]",
            ]
        )

    def typed(self, text: str) -> str:
        if self.task.dtype == "float32":
            return text
        return f"({text}).to(torch.{self.task.dtype})"

    def dims(self, shape: tuple[int, ...]) -> str:
        text = ", ".join(self.named(shape))
        return f"({text},)" if len(shape) == 1 else f"({text})"

    def named(self, shape: tuple[int, ...]) -> list[str]:
        """Returns a shape with the names of the input's dimensions where they are these."""
        sizes = self.task.shape
        out = []
        for i, d in enumerate(shape):
            if i < len(sizes) and sizes[i] == d:
                out.append(self.task.names[i])
            elif d in sizes and d > 1:
                out.append(self.task.names[len(sizes) - 1 - sizes[::-1].index(d)])
            else:
                out.append(str(d))
        return out

    def literal(self, v: Any) -> str:
        if isinstance(v, int) and not isinstance(v, bool) and v in self.task.shape[1:] and v > 8:
            return self.task.names[1 + self.task.shape[1:].index(v)]
        return repr(v)

    def fresh(self, name: str) -> str:
        found, n = name, 2
        while found in self.taken:
            found, n = f"{name}{n}", n + 1
        self.taken.add(found)
        return found

    def step(self, s: Step, x: tuple[int, ...]) -> str:
        """Returns the expression of a step, and notes what it needs."""
        tensors = {n: self.tensor(n, t, x) for n, t in s.tensors.items()}
        tensors |= dict.fromkeys(s.again, "x")
        if s.form == "module":
            text = self.module(s, tensors)
        elif s.listed:
            text = self.call(spelled(s.path), [f"[x, {', '.join(tensors.values())}]"], s.arguments)
        elif s.kind in OPERATORS and self.plain and (operand := self.operand(s, tensors)):
            text = f"x {OPERATORS[s.kind]} {operand}"
        else:
            leading = ["x", *(tensors[n] for n in s.leading)]
            rest = [f"{n}={t}" for n, t in tensors.items() if n not in s.leading]
            text = self.call(spelled(s.path), leading + rest, s.arguments)
        return f"{text}[0]" if s.first else text

    def operand(self, s: Step, tensors: dict[str, str]) -> str:
        """Returns the second operand where an operator has nothing else, "" elsewhere."""
        if len(tensors) == 1 and not s.arguments and not s.path.endswith("rsub"):
            return next(iter(tensors.values()))
        if not tensors and list(s.arguments) == ["other"] and not s.path.endswith("rsub"):
            v = s.arguments["other"]
            return f"({v})" if v < 0 else repr(v)
        return ""

    def call(self, name: str, given: list[str], arguments: dict[str, Any]) -> str:
        return f"{name}({', '.join(given + [f'{n}={v!r}' for n, v in arguments.items()])})"

    def module(self, s: Step, tensors: dict[str, str]) -> str:
        name = self.fresh(squash(s.path) if s.path.count(".") < 4 else s.kind)
        written = []
        for n, v in s.arguments.items():
            if (
                isinstance(v, int | float)
                and not isinstance(v, bool)
                and len(self.passed) < MAX_PASSED
            ):
                parameter = self.fresh(n)
                self.passed[parameter] = v
                written.append(f"{n}={parameter}")
            else:
                written.append(f"{n}={v!r}")
        self.made.append(f"self.{name} = {spelled(s.path)}({', '.join(written)})")
        order = [n for n in forward_names(resolve(s.path))[1:] if n in tensors]
        return f"self.{name}({', '.join(['x', *(tensors[n] for n in order)])})"

    def tensor(self, name: str, t: Tensor, x: tuple[int, ...]) -> str:
        """Returns the name of a further tensor: an input, or a parameter of the model."""
        shape, draw = t.shape(x), ROLES[t.role].draw
        text = ", ".join(self.named(shape))
        if t.weight:
            own = self.fresh("weight" if len(shape) > 1 else name if name != "x" else "weight")
            literal = ", ".join(map(str, shape))
            self.made.append(
                f"self.{own} = nn.Parameter(torch.randn({literal}) / {math.sqrt(shape[-1]):.3g})"
            )
            return f"self.{own}"
        own = self.fresh(name)
        how = {
            "randn": self.typed(f"torch.randn({text})"),
            "rand": self.typed(f"torch.rand({text}) + 0.1"),
            "labels": f"torch.randint(0, {max(1, x[1]) if len(x) > 1 else 1}, ({text},))",
            "mask": f"torch.rand({text}) > 0.5",
            "signs": self.typed(f"torch.sign(torch.randn({text}))"),
        }[draw]
        self.inputs.append((own, self.dims(shape), how))
        return own


def render(task: Drawn, plain_operators: bool) -> str:
    """Returns the reference file of a task."""
    return Writer(task, plain_operators).write()
