"""How alike two reference files are.

A file becomes the tree of operators that its ``Model.forward`` returns (``canonical``). Names, the
order of statements, module against function against method, shapes and numbers are gone from it;
usual spellings of one operator are one (``x * sigmoid(x)`` is ``silu``). Nothing of it is run.

Similarity is 1 - TED / max(nodes), with the tree edit distance of unit costs of K. Zhang and D.
Shasha, "Simple Fast Algorithms for the Editing Distance between Trees and Related Problems", SIAM
J. Comput. 18(6), 1989. Trees of over ``LARGE`` nodes, or whose tables would have over ``CELLS``
cells, are compared by the pq-gram distance (p = 2, q = 1) of N. Augsten, M. Boehlen and J. Gamper,
"Approximate Matching of Hierarchical Data Using pq-Grams", VLDB 2005, in linear time.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bounded import TooMuch
from idioms import Tree
from spelling import Reader

LARGE = 120  # nodes
CELLS = 1 << 20  # of the tables of a distance: trees of many branches have most
MAX_BYTES = 1 << 18  # of a file, whose syntax tree takes 500 times as much


class Unreadable(Exception):
    """A file that is no Python, or defines no Model."""


@dataclass(frozen=True)
class Canonical:
    """A reference as the tree of its operators."""

    tree: Tree

    @cached_property
    def labels(self) -> Counter[str]:
        return Counter(label for label, _ in _walk(self.tree))

    @cached_property
    def size(self) -> int:
        return self.labels.total()

    @cached_property
    def ordered(self) -> _Postorder:
        return _Postorder(self.tree)

    @cached_property
    def grams(self) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for label, children in _walk(self.tree):
            for child in children:
                for grand in child[1] or (("", ()),):
                    found[(label, child[0], grand[0])] += 1
        return found


def _walk(tree: Tree) -> Iterator[Tree]:
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node[1])


def canonical(source: str) -> Canonical:
    """Returns a reference's tree of operators. Raises Unreadable."""
    if len(source) > MAX_BYTES:
        raise Unreadable("the file is too large")
    try:
        module = ast.parse(source)
        return Canonical(Reader(module).read())
    except SyntaxError as e:
        raise Unreadable(f"the file is no Python: {e.msg} (line {e.lineno})") from e
    except (RecursionError, MemoryError, ValueError) as e:
        raise Unreadable("the file is nested too deeply") from e
    except TooMuch as e:
        raise Unreadable("following the file takes too long") from e
    except LookupError as e:
        raise Unreadable("the file defines no class Model with a forward") from e


def bound(a: Canonical, b: Canonical) -> float:
    """Returns what the similarity is at most: labels that have no partner have to be edited."""
    return (a.labels & b.labels).total() / max(a.size, b.size)


def similarity(a: Canonical, b: Canonical) -> float:
    """Returns how alike two trees are, from 0 to 1."""
    if a.tree == b.tree:
        return 1.0
    most = max(a.size, b.size)
    if most > LARGE or a.ordered.cells * b.ordered.cells > CELLS:
        together = a.grams.total() + b.grams.total()
        return 2 * (a.grams & b.grams).total() / together if together else 1.0
    return 1 - _edits(a.ordered, b.ordered) / most


def nearest(
    a: Canonical, others: Sequence[tuple[str, Canonical]], limit: float
) -> tuple[float, str]:
    """Returns the similarity to the most similar one that may lie over ``limit``, and its name."""
    best = (0.0, "")
    for name, b in others:
        if min(a.size, b.size) <= limit * max(a.size, b.size) or bound(a, b) <= max(limit, best[0]):
            continue
        found = similarity(a, b)
        if found > best[0]:
            best = (found, name)
            if found == 1:
                break
    return best


class _Postorder:
    """A tree in postorder: labels, leftmost leaves, and the keyroots of Zhang and Shasha."""

    def __init__(self, tree: Tree) -> None:
        self.labels: list[str] = []
        self.leftmost: list[int] = []
        self._visit(tree)
        last = {left: i for i, left in enumerate(self.leftmost)}
        self.keyroots = sorted(last.values())
        self.cells = sum(i - self.leftmost[i] + 2 for i in self.keyroots)

    def _visit(self, tree: Tree) -> int:
        left = -1
        for child in tree[1]:
            found = self._visit(child)
            left = found if left < 0 else left
        self.labels.append(tree[0])
        self.leftmost.append(left if left >= 0 else len(self.labels) - 1)
        return self.leftmost[-1]


def distance(one: Tree, other: Tree) -> int:
    """Returns the least number of nodes to insert, delete or rename between two ordered trees."""
    return _edits(_Postorder(one), _Postorder(other))


def _edits(a: _Postorder, b: _Postorder) -> int:
    known = [[0] * len(b.labels) for _ in a.labels]
    for i in a.keyroots:
        for j in b.keyroots:
            _forests(a, b, i, j, known)
    return known[-1][-1]


def _forests(a: _Postorder, b: _Postorder, i: int, j: int, known: list[list[int]]) -> None:
    """Fills in the distances of all pairs of subtrees that begin where those of i and j do."""
    li, lj = a.leftmost[i], b.leftmost[j]
    rows, columns = i - li + 2, j - lj + 2
    d = [[0] * columns for _ in range(rows)]
    for x in range(1, rows):
        d[x][0] = x
    d[0] = list(range(columns))
    for x in range(1, rows):
        for y in range(1, columns):
            p, q = li + x - 1, lj + y - 1
            cut = min(d[x - 1][y], d[x][y - 1]) + 1
            if a.leftmost[p] == li and b.leftmost[q] == lj:
                d[x][y] = min(cut, d[x - 1][y - 1] + (a.labels[p] != b.labels[q]))
                known[p][q] = d[x][y]
            else:
                d[x][y] = min(cut, d[a.leftmost[p] - li][b.leftmost[q] - lj] + known[p][q])
