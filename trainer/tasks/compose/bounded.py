"""Trees of operators as a file is read, and how much of it is read at all.

A file is a stranger's: a list may hold one list many times, calls lie within calls and loops within
loops. What that comes to is bounded by counts, and by no time: every machine says the same of a
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idioms import VALUE, Tree

BIG = 4000  # nodes that a tree may have
DEEP = 400  # levels of it: what walks a tree calls itself
TOO_BIG: Tree = ("big", ())  # stands for a tree over either
WORK = 1_000_000  # statements, expressions and nodes
KEPT = 8  # of it for a node that is kept
END = object()


class TooMuch(Exception):
    """Reading the file would take more than WORK."""


class Trees:
    """Makes the trees of one file."""

    def __init__(self) -> None:
        self.left = WORK
        self.sizes: dict[int, tuple[Tree, int, int]] = {}  # by id: a tree, its nodes and levels

    def spend(self, work: int) -> None:
        """Counts work. Raises TooMuch."""
        self.left -= work
        if self.left < 0:
            raise TooMuch

    def made(self, label: str, children: tuple[Tree, ...]) -> Tree:
        """Returns a node, TOO_BIG where too much is below it."""
        return self.bounded((label, children))

    def of(self, label: str, values: list[Any]) -> Tree:
        """Returns a node over the tensors among values, VALUE where there are none."""
        children = self.flat(values)
        return self.made(label, children) if children else VALUE

    def bounded(self, tree: Tree) -> Tree:
        """Returns a tree, TOO_BIG where it is too large."""
        nodes, levels = self._size(tree)
        self.spend(nodes + KEPT)
        return tree if nodes <= BIG and levels <= DEEP else TOO_BIG

    def nodes(self, tree: Tree) -> int:
        return self._size(tree)[0]

    def _size(self, tree: Tree) -> tuple[int, int]:
        """Returns a tree's nodes and levels. Every tree is asked for them: few nodes are new."""
        known = self.sizes.get(id(tree))
        if known is not None:
            return known[1:]
        nodes, levels = 1, 0
        for child in tree[1]:
            n, deep = self._size(child)
            nodes, levels = nodes + n, max(levels, deep)
        self.sizes[id(tree)] = (tree, nodes, levels + 1)  # with the tree: its id is no other's
        return nodes, levels + 1

    def flat(self, values: list[Any]) -> tuple[Tree, ...]:
        """Returns the tensors among values, those in lists too; TOO_BIG alone where there are too
        many. A list may hold another one many times, and itself.
        """
        out: list[Tree] = []
        todo: list[Iterator[Any]] = [iter(values)]
        lists = 0
        while todo:
            self.spend(1)
            v = next(todo[-1], END)
            if v is END:
                todo.pop()
            elif isinstance(v, list):
                todo.append(iter(v))
                lists += 1
            elif isinstance(v, tuple) and v != VALUE:
                out.append(v)
            if len(out) + lists > BIG:
                return (TOO_BIG,)
        return tuple(out)
