"""Usual spellings of one operator, made one: ``x / y`` is ``x * reciprocal(y)``, and so on.

A tree is a label with its children. Numbers and other values that are no tensors are no nodes.
"""

from __future__ import annotations

from typing import Any

Tree = tuple[str, tuple["Tree", ...]]  # type: ignore[misc]
INPUT: Tree = ("in", ())
PARAMETER: Tree = ("par", ())
VALUE: Tree = ("#", ())  # what is no tensor

COMMUTATIVE = {"add", "mul", "maximum", "minimum", "eq", "ne", "logicaland", "logicalor"}
FEW = 64  # nodes of what is spelt out of one operator
# Where a parameter of the model is an operand like any other. Elsewhere it is a weight.
OPERANDS = {"add", "mul", "maximum", "minimum", "where", "max", "min"}


def fold(
    kind: str,
    children: list[Tree],
    values: list[bool],
    numbers: list[Any],
    named: dict[str, Any],
    module: bool,
) -> Tree:
    """Returns an operator on trees in its usual spelling.

    ``values`` says which of its arguments are no tensors, ``numbers`` what these are where they are
    written out, ``named`` the same of keywords.
    """
    reversed_ = bool(values) and values[0] and len(values) > 1  # 2 / x, 1 - x
    number = next((n for n in numbers if isinstance(n, int | float)), None)
    if kind == "sub":
        return _sub(children, reversed_, number)
    if kind == "div":
        return _div(children, reversed_, number)
    if kind in ("add", "mul"):
        return _many(kind, children, number)
    if kind == "pow":
        exponent = numbers[-1] if numbers else None
        roots: dict[Any, str] = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal", 1: ""}
        root = roots.get(exponent, "pow")
        return children[0] if not root else (root, tuple(children))
    if kind in ("maximum", "minimum") and len(children) == 1:
        return ("relu" if number == 0 and kind == "maximum" else "clamp", tuple(children))
    if kind == "clamp":
        low = named.get("min", numbers[1] if len(numbers) > 1 else None)
        most = named.get("max", numbers[2] if len(numbers) > 2 else None)
        return ("relu" if low == 0 and most is None and not module else "clamp", tuple(children))
    if kind.startswith("adaptiveavgpool") and 1 in [*numbers, *named.values()]:
        return ("mean", tuple(children))
    if kind in ("max", "min") and len(children) == 2:
        return ({"max": "maximum", "min": "minimum"}[kind], tuple(children))
    if kind == "multiheadattention":
        children = list(dict.fromkeys(children))
    return _plain(kind, children)


def _plain(kind: str, children: list[Tree]) -> Tree:
    if kind == "transpose" and children[0] == PARAMETER:
        return PARAMETER
    if kind == "neg" and children[0][0] == "neg":
        return children[0][1][0]
    if kind == "matmul" and PARAMETER in children:
        kind = "linear"
    if kind not in OPERANDS and len(children) > 1:
        children = [c for c in children if c != PARAMETER] or [PARAMETER]
    tree: Tree = (kind, tuple(children))
    return _nested(tree)


def _sub(children: list[Tree], reversed_: bool, number: Any) -> Tree:
    if len(children) == 1:
        return _many(
            "add",
            [_plain("neg", children)] if reversed_ else children,
            number if not reversed_ else None,
        )
    return _many("add", [children[0], _plain("neg", children[1:2])], None)


def _div(children: list[Tree], reversed_: bool, number: Any) -> Tree:
    if len(children) == 1:
        return _reciprocal(children[0]) if reversed_ else _many("mul", children, number)
    return _many("mul", [children[0], _reciprocal(children[1])], None)


def _reciprocal(tree: Tree) -> Tree:
    return ("rsqrt", tree[1]) if tree[0] == "sqrt" else ("reciprocal", (tree,))


def _many(kind: str, children: list[Tree], number: Any) -> Tree:
    """Returns a sum or product of all that is added or multiplied, however it is bracketed."""
    flat: list[Tree] = []
    for c in children:
        flat += c[1] if c[0] == kind else [c]
    flat.sort()
    if len(flat) == 1:
        if number == (0 if kind == "add" else 1):
            return flat[0]
        return children[0] if children[0][0] == kind else (kind, tuple(flat))
    if kind == "mul":
        return _product(flat)
    if kind == "add":
        return _sum(flat)
    return (kind, tuple(flat))


def _sum(terms: list[Tree]) -> Tree:
    # A product and its bias are a linear layer.
    if len(terms) == 2 and PARAMETER in terms:
        other = next((t for t in terms if t != PARAMETER), PARAMETER)
        if other[0] == "linear" or other[0].startswith("conv"):
            return other
    return ("add", tuple(terms))


def _product(factors: list[Tree]) -> Tree:
    """Returns what a product is called where it has a name of its own."""
    if len(factors) == 2:
        for x, y in (factors, factors[::-1]):
            if name := _named(x, y):
                return (name, (x,) if name != "softmax" else x[1])
        if factors[0] == factors[1]:
            return ("pow", (factors[0],))
    return ("mul", tuple(factors))


def _named(x: Tree, y: Tree) -> str:
    """Returns what x times y is called, "" where it has no name."""
    label, inner = y[0], y[1][0] if y[1] else VALUE
    if y in (("sigmoid", (x,)), ("sigmoid", (("mul", (x,)),))):
        return "silu"
    if y == ("tanh", (("softplus", (x,)),)):
        return "mish"
    if label == "add" and inner[0] in ("tanh", "erf") and _leaves(inner, x):
        return "gelu"
    if label == "clamp" and inner == ("add", (x,)):
        return "hardswish"
    if label == "reciprocal":
        if inner == ("add", (("abs", (x,)),)):
            return "softsign"
        if inner in (("norm", (x,)), ("clamp", (("norm", (x,)),)), ("add", (("norm", (x,)),))):
            return "normalize"
        if x[0] == "exp" and inner == ("sum", (x,)):
            return "softmax"
    squared = ("mean", (("pow", (x,)),))
    if label == "rsqrt" and inner in (squared, ("add", (squared,))):
        return "rmsnorm"
    return ""


def _leaves(tree: Tree, x: Tree) -> bool:
    """Returns whether a tree is made of x alone, by few operators."""
    todo = [tree]
    for _ in range(FEW):
        if not todo:
            return True
        node = todo.pop()
        if node != x:
            if not node[1]:
                return False
            todo.extend(node[1])
    return not todo


def _nested(tree: Tree) -> Tree:
    """Returns an operator on an operator as the one that both are."""
    kind, children = tree
    inner = children[0]
    if kind == "log" and inner[0] in ("sigmoid", "softmax"):
        return ("log" + inner[0], inner[1])
    if kind == "log1p" and inner[0] == "exp":
        return ("softplus", inner[1])
    if kind == "log" and inner[0] == "add" and len(inner[1]) == 1 and inner[1][0][0] == "exp":
        return ("softplus", inner[1][0][1])
    if kind == "log" and inner[0] == "sum" and inner[1][0][0] == "exp":
        return ("logsumexp", inner[1][0][1])
    if kind == "reciprocal":
        return _reciprocal(inner)
    if kind == "sqrt" and inner[0] == "sum" and len(inner[1]) == 1 and inner[1][0][0] == "pow":
        return ("norm", inner[1][0][1])
    if kind == "mean" and inner[0] in ("pow", "abs") and len(inner[1]) == 1:
        gap = inner[1][0]
        if gap[0] == "add" and len(gap[1]) == 2:
            terms = sorted(t[1][0] if t[0] == "neg" else t for t in gap[1])
            if any(t[0] == "neg" for t in gap[1]):
                return ("mse" if inner[0] == "pow" else "l1", tuple(terms))
    if kind in ("mse", "l1", "smoothl1", "huber", "cosinesimilarity", "pairwisedistance"):
        return (kind, tuple(sorted(children)))
    if kind in ("conv1d", "conv2d", "conv3d"):
        return (kind, children[:1])
    return tree
