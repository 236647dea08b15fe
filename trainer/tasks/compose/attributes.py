"""What a class of a reference says its attributes are, off its text."""

from __future__ import annotations

import ast


class Module:
    """A class of the file, as far as it tells what its attributes are."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        self.last = {n: _last(f) for n, f in self.methods.items()}  # what each returns at its end
        self.attributes: dict[str, ast.expr] = {}
        self.appended: dict[str, list[ast.expr]] = {}  # to local lists: layers.append(...)
        for f in self.methods.values():
            if f.name != "forward":
                written = [n for n in ast.walk(f) if isinstance(n, ast.stmt | ast.Call)]
                for n in sorted(written, key=lambda n: (n.lineno, n.col_offset)):
                    self._attribute(n)

    def _attribute(self, n: ast.AST) -> None:
        """Takes down what is assigned to self, or registered by name."""
        if isinstance(n, ast.Assign | ast.AnnAssign) and n.value is not None:
            for t in n.targets if isinstance(n, ast.Assign) else [n.target]:
                if (
                    isinstance(t, ast.Attribute)
                    and isinstance(t.value, ast.Name)
                    and t.value.id == "self"
                ):
                    self.attributes.setdefault(t.attr, n.value)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.args:
            first = n.args[0]
            if n.func.attr == "append" and isinstance(n.func.value, ast.Name):
                self.appended.setdefault(n.func.value.id, []).append(first)
            if n.func.attr in ("register_buffer", "register_parameter") and isinstance(
                first, ast.Constant
            ):
                self.attributes.setdefault(str(first.value), n)


def _last(f: ast.FunctionDef) -> ast.expr | None:
    returned = [n.value for n in ast.walk(f) if isinstance(n, ast.Return)]
    return returned[-1] if returned else None
