"""Reads what a reference computes off its text, as a tree of operator kinds. Nothing is run."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any

from attributes import Module
from bounded import TOO_BIG, Trees
from idioms import COMMUTATIVE, INPUT, PARAMETER, VALUE, Tree, fold
from naming import kind_of

# What hands its first tensor on as it is, or in another shape at no cost.
HANDED_ON = set(
    """
    contiguous clone detach to float type cuda cpu dropout dropout1d dropout2d dropout3d
    alphadropout featurealphadropout identity requiresgrad reshape expand typeas astensor
    tensor checkpoint
    """.split()  # noqa: SIM905
)
# What tells of a tensor, and is none.
TOLD = {"shape", "size", "dim", "ndim", "dtype", "device", "numel", "nelement", "len", "stride"}
BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
    ast.Mod: "remainder",
    ast.FloorDiv: "floordiv",
    ast.BitAnd: "logicaland",
    ast.BitOr: "logicalor",
}
COMPARED = {ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt", ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne"}
PARAMETERS = {"parameter", "buffer", "registerbuffer", "registerparameter"}
MADE = {"randn", "rand", "zeros", "ones", "empty", "full", "arange", "eye", "linspace", "tensor"}
DEPTH = 24  # functions and modules within each other
# Of a name that counts: names that are made of names grow with the file.
PARTS, LETTERS = 32, 1000


class Reader:
    """Reads one file."""

    def __init__(self, module: ast.Module) -> None:
        self.trees = Trees()
        self.texts: dict[int, tuple[ast.expr, str]] = {}
        self.names: dict[str, str] = {}  # imported names to what they mean
        self.classes: dict[str, Module] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        for n in ast.walk(module):
            if isinstance(n, ast.Import):
                for a in n.names:
                    self.names[a.asname or a.name.split(".")[0]] = (
                        a.name if a.asname else a.name.split(".")[0]
                    )
            elif isinstance(n, ast.ImportFrom):
                for a in n.names:
                    self.names[a.asname or a.name] = f"{n.module}.{a.name}"
            elif isinstance(n, ast.ClassDef):
                self.classes[n.name] = Module(n)
        for n in module.body:
            if isinstance(n, ast.FunctionDef):
                self.functions[n.name] = n
            elif isinstance(n, ast.Assign) and isinstance(n.value, ast.Name | ast.Attribute):
                for t in n.targets:  # relu = torch.relu
                    if isinstance(t, ast.Name) and (path := self.path(n.value)):
                        self.names[t.id] = path

    def read(self) -> Tree:
        """Returns the tree of what Model's forward returns. Raises LookupError, TooMuch."""
        model = self.classes["Model"]
        if "forward" not in model.methods:
            raise LookupError("forward")
        forward = model.methods["forward"]
        inputs: list[Any] = [(f"in{i}", ()) for i, _ in enumerate(_parameters(forward))]
        returned = Scope(self, model, 0).call(forward, inputs)
        return _alike(self.trees.made("out", self.trees.flat([returned])))

    def text(self, e: ast.expr) -> str:
        """Returns the end of an expression as text, made once."""
        if id(e) not in self.texts:
            self.texts[id(e)] = (e, ast.unparse(e)[-LETTERS:])
        return self.texts[id(e)][1]

    def path(self, node: ast.expr) -> str:
        """Returns the dotted path of a name that was imported, "" for another."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < PARTS:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        path = ".".join([self.names[node.id], *reversed(parts)])
        return path if len(path) <= LETTERS else ""


def _alike(tree: Tree) -> Tree:
    """Returns a tree whose inputs all look the same: which one comes first says nothing."""
    label, children = tree
    if not children:
        return INPUT if label.removeprefix("in").isdigit() else tree
    read = tuple(_alike(c) for c in children)
    return (label, tuple(sorted(read)) if label in COMMUTATIVE else read)


def _parameters(f: ast.FunctionDef) -> list[str]:
    a = f.args
    named = [x.arg for x in [*a.posonlyargs, *a.args, *a.kwonlyargs] if x.arg != "self"]
    return named + ([a.vararg.arg] if a.vararg else [])


class Scope:
    """Reads one call of a function: what its names stand for. A value is a tree, VALUE for what is
    no tensor, a list of values, or what can be called.
    """

    def __init__(self, reader: Reader, module: Module | None, depth: int) -> None:
        self.reader, self.module, self.depth = reader, module, depth
        self.trees = reader.trees
        self.values: dict[str, Any] = {}

    def call(self, f: ast.FunctionDef, given: list[Any]) -> Any:
        names = _parameters(f)
        self.trees.spend(len(names))
        self.values |= dict.fromkeys(names, VALUE)
        self.values |= dict(zip(names, given, strict=False))
        returned = self.block(f.body)
        return VALUE if returned is None else returned

    # Statements

    def block(self, body: list[ast.stmt]) -> Any:
        """Reads statements. Returns what is returned, None where nothing is."""
        for s in body:
            if (found := self.statement(s)) is not None:
                return found
        return None

    def statement(self, s: ast.stmt) -> Any:
        self.trees.spend(1)
        if isinstance(s, ast.Return):
            return self.value(s.value) if s.value else VALUE
        if isinstance(s, ast.Assign):
            value = self.value(s.value)
            for t in s.targets:
                self.assign(t, value)
        elif isinstance(s, ast.AnnAssign) and s.value:
            self.assign(s.target, self.value(s.value))
        elif isinstance(s, ast.AugAssign):
            left = self.value(s.target)
            self.assign(
                s.target,
                self.operator(BINARY.get(type(s.op), "op"), [left, self.value(s.value)], s.value),
            )
        elif isinstance(s, ast.Expr):
            self.expression(s.value)
        elif isinstance(s, ast.For):
            return self.loop(s)
        elif isinstance(s, ast.If):
            return self.either(s)
        elif isinstance(s, ast.With):
            return self.block(s.body)
        elif isinstance(s, ast.While):
            return self.repeated(s.body)
        return None

    def expression(self, e: ast.expr) -> None:
        """Reads a statement that is a call: it may add to a list or write in place."""
        value = self.value(e)
        if (
            isinstance(e, ast.Call)
            and isinstance(e.func, ast.Attribute)
            and isinstance(e.func.value, ast.Name)
        ):
            name, held = e.func.value.id, self.values.get(e.func.value.id)
            if e.func.attr == "append" and isinstance(held, list):
                held.append(self.value(e.args[0]))
            elif e.func.attr.endswith("_") and name in self.values:
                self.values[name] = value

    def assign(self, target: ast.expr, value: Any) -> None:
        self.trees.spend(1)
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, list) else [value] * len(target.elts)
            for t, v in zip(target.elts, parts, strict=False):
                self.assign(t, v)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            old = self.values.get(target.value.id, VALUE)
            self.values[target.value.id] = self.trees.made("put", self.trees.flat([old, value]))

    def loop(self, s: ast.For) -> Any:
        """Reads a loop: over a list that is known each of its turns, else one, said to repeat."""
        over = self.value(s.iter)
        if isinstance(over, list) and 0 < len(over) <= 64:
            for v in over:
                self.assign(s.target, v)
                if (found := self.block(s.body)) is not None:
                    return found
            return None
        self.assign(
            s.target,
            self.trees.made("item", (over,))
            if isinstance(over, tuple) and over != VALUE
            else VALUE,
        )
        return self.repeated(s.body)

    def repeated(self, body: list[ast.stmt]) -> Any:
        before = self.known()
        found = self.block(body)
        self.trees.spend(len(self.values))
        for n, v in self.values.items():
            if isinstance(v, tuple) and v != VALUE and self.differs(before.get(n), v):
                self.values[n] = self.trees.made("loop", (v,))
        return found

    def known(self) -> dict[str, Any]:
        """Returns what names stand for now."""
        self.trees.spend(len(self.values))
        return dict(self.values)

    def differs(self, one: Any, other: Tree) -> bool:
        """Returns whether a value is another one than a tree."""
        if one is other:
            return False
        self.trees.spend(self.trees.nodes(other))  # which are compared
        return bool(one != other)

    def either(self, s: ast.If) -> Any:
        before = self.known()
        first = self.block(s.body)
        one, self.values = self.values, before
        second = self.block(s.orelse)
        if first is not None or second is not None:
            return (
                first
                if second is None
                else second
                if first is None
                else self.trees.made("if", self.trees.flat([first, second]))
            )
        self.trees.spend(len(one))
        for n, v in one.items():
            if isinstance(v, tuple) and self.differs(self.values.get(n, v), v):
                self.values[n] = self.trees.made("if", self.trees.flat([v, self.values[n]]))
            else:
                self.values.setdefault(n, v)
        return None

    # Expressions

    def value(self, e: ast.expr | None) -> Any:
        self.trees.spend(1)
        reader: Callable[[Any], Any] | None = getattr(self, f"_{type(e).__name__.lower()}", None)
        if reader is not None:
            return reader(e)
        if e is None:
            return VALUE
        parts = [self.value(c) for c in ast.iter_child_nodes(e) if isinstance(c, ast.expr)]
        return self.trees.of(f"py:{type(e).__name__}", parts)

    def _constant(self, e: ast.Constant) -> Any:
        return VALUE

    def _name(self, e: ast.Name) -> Any:
        return self.values.get(e.id, VALUE)

    def _tuple(self, e: ast.Tuple) -> Any:
        return [self.value(x) for x in e.elts if not isinstance(x, ast.Starred)] + [
            v for x in e.elts if isinstance(x, ast.Starred) for v in [self.value(x.value)]
        ]

    _list = _tuple

    def _binop(self, e: ast.BinOp) -> Any:
        return self.operator(
            BINARY.get(type(e.op), "op"), [self.value(e.left), self.value(e.right)], e.left, e.right
        )

    def _unaryop(self, e: ast.UnaryOp) -> Any:
        v = self.value(e.operand)
        return self.operator("neg", [v]) if isinstance(e.op, ast.USub) else v

    def _compare(self, e: ast.Compare) -> Any:
        return self.operator(
            COMPARED.get(type(e.ops[0]), "cmp"),
            [self.value(e.left), *map(self.value, e.comparators)],
        )

    def _ifexp(self, e: ast.IfExp) -> Any:
        a, b = self.value(e.body), self.value(e.orelse)
        both = self.trees.flat([a, b])
        return both[0] if len(both) == 1 else self.trees.made("if", both) if both else VALUE

    def _attribute(self, e: ast.Attribute) -> Any:
        if isinstance(e.value, ast.Name) and e.value.id == "self" and self.module:
            return self.member(e.attr)
        held = self.value(e.value)
        if e.attr in TOLD or held == VALUE:
            return VALUE
        if e.attr in ("T", "mT", "H"):
            return self.operator("transpose", [held])
        return held  # x.values, x.data

    def member(self, name: str) -> Any:
        """Returns what an attribute of the model is worth where it is not called."""
        assert self.module
        made = self.module.attributes.get(name)
        if made is None:
            return VALUE
        if isinstance(made, ast.Call):
            called = kind_of(self.reader.text(made.func))
            if called in PARAMETERS or called in MADE:
                return PARAMETER
        return self.modules(made)

    def modules(self, made: ast.expr) -> Any:
        """Returns a list of the modules that an expression holds, VALUE where it holds none."""
        if isinstance(made, ast.Call) and self.reader.text(made.func).endswith(
            ("ModuleList", "Sequential")
        ):
            inner = made.args[0] if len(made.args) == 1 else ast.List(elts=made.args)
            inner = inner.value if isinstance(inner, ast.Starred) else inner
            if isinstance(inner, ast.Name) and self.module:
                return self.all_of(self.module.appended.get(inner.id, []))
            return (
                self.modules(inner)
                if isinstance(inner, ast.List | ast.Tuple | ast.ListComp)
                else [inner]
            )
        if isinstance(made, ast.List | ast.Tuple):
            return self.all_of(made.elts)
        return [made.elt] if isinstance(made, ast.ListComp) else VALUE

    def all_of(self, made: list[ast.expr]) -> list[ast.expr]:
        self.trees.spend(len(made))
        return list(made)

    def _subscript(self, e: ast.Subscript) -> Any:
        held = self.value(e.value)
        if isinstance(held, list):
            at = e.slice.value if isinstance(e.slice, ast.Constant) else None
            return held[at] if isinstance(at, int) and -len(held) <= at < len(held) else VALUE
        if held == VALUE or (
            isinstance(e.slice, ast.Constant)
            and held[0]
            in ("max", "min", "lstm", "gru", "rnn", "multiheadattention", "topk", "sort", "median")
        ):
            return held
        return self.trees.made("index", self.trees.flat([held, self.value(e.slice)]))

    def _slice(self, e: ast.Slice) -> Any:
        return VALUE

    def _call(self, e: ast.Call) -> Any:
        given = [self.value(x.value if isinstance(x, ast.Starred) else x) for x in e.args]
        given += [self.value(k.value) for k in e.keywords]
        f = e.func
        if path := self.reader.path(f):
            return self.operator(kind_of(path), given, *e.args, keywords=e.keywords)
        if isinstance(f, ast.Name):
            return self.plain(f, given, e)
        if isinstance(f, ast.Attribute):
            if isinstance(f.value, ast.Name) and f.value.id == "self" and self.module:
                return self.own(f.attr, given)
            held = self.value(f.value)
            if f.attr in TOLD:
                return VALUE
            if isinstance(held, tuple) and held != VALUE:
                return self.operator(
                    kind_of(f.attr), [held, *given], f.value, *e.args, keywords=e.keywords
                )
        if isinstance(f, ast.Call | ast.Subscript):  # nn.ReLU()(x), self.layers[0](x)
            return self.applied(f if isinstance(f, ast.Call) else self.value(f), given)
        return self.trees.of("py:call", given)

    def plain(self, f: ast.Name, given: list[Any], e: ast.Call) -> Any:
        """Reads a call of a name: of the file's own function, of a local, or a builtin."""
        if f.id in self.values:
            return self.applied(self.values[f.id], given)
        if f.id in self.reader.functions and self.depth < DEPTH:
            return Scope(self.reader, None, self.depth + 1).call(self.reader.functions[f.id], given)
        if f.id in TOLD or f.id == "range":
            return VALUE
        if f.id in ("list", "tuple", "reversed") and given:
            return given[0]
        name = f.id if hasattr(builtins, f.id) else "call"
        return self.trees.of(f"py:{name}", given)

    def own(self, name: str, given: list[Any]) -> Any:
        """Reads a call of an attribute of the model: its method, or a module that it made."""
        assert self.module
        if name in self.module.methods and self.depth < DEPTH:
            return Scope(self.reader, self.module, self.depth + 1).call(
                self.module.methods[name], given
            )
        return self.applied(self.module.attributes.get(name), given)

    def applied(self, made: Any, given: list[Any]) -> Any:
        """Reads a call of a module by the expression that made it."""
        self.trees.spend(1)
        if isinstance(made, list):
            for one in made:
                given = [self.applied(one, given)]
            return given[0] if given else VALUE
        if isinstance(made, ast.IfExp):
            return self.applied(made.body, given)
        path = self.reader.path(made) if isinstance(made, ast.expr) else ""
        if path:  # self.act = torch.relu
            return self.operator(kind_of(path), given)
        if not isinstance(made, ast.Call):
            return self.trees.of("py:call", given)
        held = self.modules(made)
        if isinstance(held, list):
            return self.applied(held, given)
        if (returned := self.returned(made)) is not None:
            return self.applied(returned, given)
        name = made.func.id if isinstance(made.func, ast.Name) else ""
        inner = self.reader.classes.get(name)
        if inner and "forward" in inner.methods and self.depth < DEPTH:
            return Scope(self.reader, inner, self.depth + 1).call(inner.methods["forward"], given)
        path = self.reader.path(made.func)
        # A name that is local, such as a class that is handed over, tells nothing.
        kind = (
            kind_of(path)
            if path
            else "local"
            if isinstance(made.func, ast.Name)
            else kind_of(self.reader.text(made.func))
        )
        return self.operator(kind, given, None, *made.args, keywords=made.keywords, module=True)

    def returned(self, made: ast.Call) -> ast.expr | None:
        """Returns what a method of the model that makes a module ends with: self._block(3)."""
        f = made.func
        if not (
            isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "self"
        ):
            return None
        last = self.module.last.get(f.attr) if self.module else None
        return last if self.depth < DEPTH else None

    def operator(
        self,
        kind: str,
        given: list[Any],
        *texts: ast.expr | None,
        keywords: list[ast.keyword] | None = None,
        module: bool = False,
    ) -> Any:
        """Returns the tree of an operator on values, in its usual spelling."""
        children = self.trees.flat(given)
        if kind in MADE and not children:
            return PARAMETER
        if not children:
            return VALUE
        if kind in HANDED_ON:
            return children[0]
        if self.trees.made(kind, children) is TOO_BIG:
            return TOO_BIG
        numbers = [_number(t) for t in texts]
        named = {k.arg or "": _number(k.value) for k in keywords or []}
        whole = [v == VALUE for v in given]
        folded = fold(kind, list(children), whole, numbers, named, module)
        if folded[0] in COMMUTATIVE:
            folded = (folded[0], tuple(sorted(folded[1])))
        return self.trees.bounded(folded)


def _number(e: ast.expr | None) -> Any:
    """Returns a constant's value, None for what is none. (1, 1) counts as 1."""
    if isinstance(e, ast.Tuple | ast.List) and e.elts:
        parts = {_number(x) for x in e.elts}
        return parts.pop() if len(parts) == 1 else None
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        v = _number(e.operand)
        return -v if isinstance(v, int | float) else None
    return e.value if isinstance(e, ast.Constant) else None
