"""Near-copies of a reference: what somebody, or a model, makes of a protected file to hide it."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

# nn.X(...) kept in an attribute, and what it is as a function with the same parameters.
FUNCTIONAL = {
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "Hardtanh": "hardtanh",
    "Softplus": "softplus",
    "Hardswish": "hardswish",
    "Mish": "mish",
    "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d",
    "MaxPool3d": "max_pool3d",
    "AvgPool1d": "avg_pool1d",
    "AvgPool2d": "avg_pool2d",
    "AvgPool3d": "avg_pool3d",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
}
WRITTEN = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
}


class _Renamed(ast.NodeTransformer):
    """Gives locals, parameters and attributes other names."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def to(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def visit_FunctionDef(self, n: ast.FunctionDef) -> ast.AST:
        for a in n.args.args:
            if a.arg != "self":
                a.arg = self.to(a.arg)
        return self.generic_visit(n)

    def visit_Name(self, n: ast.Name) -> ast.AST:
        if isinstance(n.ctx, ast.Store) or n.id in self.names:
            n.id = self.to(n.id)
        return n

    def visit_Attribute(self, n: ast.Attribute) -> ast.AST:
        self.generic_visit(n)
        if isinstance(n.value, ast.Name) and n.value.id == "self" and isinstance(n.ctx, ast.Store):
            n.attr = self.to("self." + n.attr)
        elif isinstance(n.value, ast.Name) and n.value.id == "self":
            n.attr = self.names.get("self." + n.attr, n.attr)
        return n


class _Resized(ast.NodeTransformer):
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def visit_Constant(self, n: ast.Constant) -> ast.AST:
        if type(n.value) is int and n.value > 2:
            return ast.Constant(n.value + self.rng.randrange(1, 9))
        return n


class _Functions(ast.NodeTransformer):
    """Writes operators as functions, and modules without weights as functionals."""

    def __init__(self, modules: dict[str, ast.Call]) -> None:
        self.modules = modules

    def visit_BinOp(self, n: ast.BinOp) -> ast.AST:
        self.generic_visit(n)
        name = WRITTEN.get(type(n.op))
        if name is None or isinstance(n.left, ast.Constant) or not _tensors(n):
            return n
        return ast.Call(_dotted("torch", name), [n.left, n.right], [])

    def visit_Call(self, n: ast.Call) -> ast.AST:
        self.generic_visit(n)
        f = n.func
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "self":
            made = self.modules.get(f.attr)
            if made is not None and isinstance(made.func, ast.Attribute):
                name = FUNCTIONAL[made.func.attr]
                return ast.Call(
                    _dotted("torch.nn.functional", name), [*n.args, *made.args], made.keywords
                )
        return n


def _tensors(n: ast.BinOp) -> bool:
    return not any(
        isinstance(x, ast.Attribute) and x.attr in ("shape", "size") for x in ast.walk(n)
    )


def _dotted(space: str, name: str) -> ast.expr:
    return ast.parse(f"{space}.{name}", mode="eval").body


def renamed(source: str, _: random.Random) -> str:
    tree = ast.parse(source)
    for c in tree.body:
        if isinstance(c, ast.ClassDef):
            names = _Renamed()
            c.body = [names.visit(f) for f in c.body]
    return ast.unparse(ast.fix_missing_locations(tree))


def resized(source: str, rng: random.Random) -> str:
    return ast.unparse(ast.fix_missing_locations(_Resized(rng).visit(ast.parse(source))))


def reordered(source: str, rng: random.Random) -> str:
    """Puts methods and functions in another order, and independent modules in __init__."""
    tree = ast.parse(source)
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    rest = [n for n in tree.body if n not in imports]
    rest.sort(key=lambda n: isinstance(n, ast.ClassDef))
    for c in rest:
        if isinstance(c, ast.ClassDef):
            c.body.sort(key=lambda n: getattr(n, "name", "") == "__init__")
            for f in c.body:
                if isinstance(f, ast.FunctionDef) and f.name == "__init__":
                    made = [s for s in f.body if isinstance(s, ast.Assign)]
                    if not any(isinstance(s, ast.For | ast.If | ast.With) for s in f.body):
                        rng.shuffle(made)
                        f.body = [s for s in f.body if not isinstance(s, ast.Assign)] + made
    tree.body = imports + rest
    return ast.unparse(tree)


def respelled(source: str, _: random.Random) -> str:
    tree = ast.parse(source)
    for c in tree.body:
        if not isinstance(c, ast.ClassDef):
            continue
        made = {
            t.attr: s.value
            for f in c.body
            if isinstance(f, ast.FunctionDef)
            for s in ast.walk(f)
            if isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Call)
            and isinstance(s.value.func, ast.Attribute)
            and s.value.func.attr in FUNCTIONAL
            for t in s.targets
            if isinstance(t, ast.Attribute)
        }
        c.body = [
            _Functions(made).visit(f)
            if isinstance(f, ast.FunctionDef) and f.name == "forward"
            else f
            for f in c.body
        ]
    return ast.unparse(ast.fix_missing_locations(tree))


def everything(source: str, rng: random.Random) -> str:
    for way in (respelled, renamed, reordered, resized):
        source = way(source, rng)
    return source


WAYS: dict[str, Callable[[str, random.Random], str]] = {
    "renamed": renamed,
    "other shapes": resized,
    "reordered": reordered,
    "other spelling": respelled,
    "all of them": everything,
}
