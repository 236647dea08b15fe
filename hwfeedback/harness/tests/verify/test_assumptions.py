"""What tasks promise may be used, and what is taken for granted is told.

Each task here has one honest candidate that uses what the inputs promise, or computes as the
reference does, and the words that its verdict has of that.
"""

from __future__ import annotations

import pytest
import torch
from evaluating import Evaluator
from test_verify import task_of

from kwharness.verify import assumptions


def model_new(forward: str, arguments: str, init: str = "") -> str:
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"class ModelNew(nn.Module):\n{init}    def forward(self, {arguments}):\n"
        f"        {forward}\n"
    )


NO_STATE = "    def load_reference_state(self, state):\n        pass\n\n"
MASKED = (
    "    def __init__(self):\n        super().__init__()\n"
    "        self.register_buffer('keep', torch.ones(32, 32).tril() > 0)\n\n"
)
NORM = """    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

"""
SQUARE = "[torch.randn(32, 32)"
TWO = "torch.randn(32, 32)]"

# Name: forward, inputs, arguments, the reference's constructor; the candidate's forward, its
# constructor; words of the sentences that its verdict has.
TASKS: dict[str, tuple[str, str, str, str, str, str, list[str]]] = {
    "upper": (
        "return torch.triu(a @ b)",
        f"{SQUARE}.triu(), {TWO[:-1]}.triu()]",
        "a, b",
        "",
        "return torch.triu(a.triu() @ b.triu())",
        "",
        ["a is upper triangular", "b is upper triangular"],
    ),
    "band": (
        "return a @ b",
        f"{SQUARE}.tril(2).triu(-1), {TWO}",
        "a, b",
        "",
        "return sum(a.diagonal(k)[:, None] * b[max(k, 0) : 32 + min(k, 0)] if k == 0 else "
        "F.pad(a.diagonal(k)[:, None] * b[max(k, 0) : 32 + min(k, 0)], "
        "(0, 0, max(-k, 0), max(k, 0))) for k in (-2, -1, 0, 1, 2))",
        "",
        ["a has a band of 4 diagonals"],
    ),
    "blocks": (
        "return a @ b",
        "[torch.block_diag(*torch.randn(4, 8, 8)), " + TWO,
        "a, b",
        "",
        "return torch.cat([a[i : i + 8, i : i + 8] @ b[i : i + 8] for i in range(0, 32, 8)])",
        "",
        ["a has blocks of 8 on its diagonal"],
    ),
    "symmetric": (
        "return a @ b",
        "[(lambda x: x + x.T)(torch.randn(32, 32)), " + TWO,
        "a, b",
        "",
        "return (a.tril() + a.tril(-1).T) @ b",
        "",
        ["a is symmetric"],
    ),
    "permutation": (
        "return p @ b",
        "[torch.eye(32)[torch.randperm(32)], " + TWO,
        "p, b",
        "",
        "return b[p.argmax(-1)]",
        "",
        ["p is a permutation matrix"],
    ),
    "one_hot": (
        "return t @ b",
        "[F.one_hot(torch.randint(0, 32, (64,)), 32).float(), " + TWO,
        "t, b",
        "",
        "return b[t.argmax(-1)]",
        "",
        ["t has rows of which one element is not zero"],
    ),
    "grouped_heads": (
        "return F.scaled_dot_product_attention(q, k, v)",
        "[torch.randn(2, 4, 16, 8)] + "
        "[torch.randn(2, 2, 16, 8).repeat_interleave(2, 1) for _ in range(2)]",
        "q, k, v",
        "",
        "return F.scaled_dot_product_attention("
        "q, *[t[:, ::2].repeat_interleave(2, 1) for t in (k, v)])",
        "",
        ["k has neighbours that are equal", "v has neighbours that are equal"],
    ),
    "additive_mask": (
        "return torch.softmax(s + m, -1)",
        "[torch.randn(8, 32, 32), torch.full((32, 32), -torch.inf).triu(1)]",
        "s, m",
        "",
        "return torch.softmax(s.masked_fill(torch.ones_like(m).triu(1) > 0, -torch.inf), -1)",
        "",
        ["takes m for granted"],
    ),
    "sorted": (
        "return torch.searchsorted(e, x)",
        "[torch.rand(24).cumsum(0) - 6, torch.randn(8, 64)]",
        "e, x",
        "",
        "return (~(e >= x[..., None])).sum(-1)",
        "",
        ["e is sorted along dimension 0"],
    ),
    "buffer_mask": (
        "return torch.softmax(s.masked_fill(~self.keep, -torch.inf), -1)",
        "[torch.randn(8, 32, 32)]",
        "s",
        MASKED,
        "return torch.softmax(s.masked_fill(torch.ones_like(s).triu(1) > 0, -torch.inf), -1)",
        NO_STATE,
        ["takes buffer keep for granted"],
    ),
    "prefix": (
        "return torch.where(keep, x, 0.0).sum(-1)",
        "[torch.randn(64, 128), torch.arange(128) < torch.randint(1, 128, (64, 1))]",
        "x, keep",
        "",
        "return torch.where(torch.arange(128) < keep.sum(-1, keepdim=True), x, 0.0).sum(-1)",
        "",
        ["right only for keep like those drawn"],
    ),
    "equal_lengths": (
        "return torch.where(torch.arange(64) < n[:, None], x, 0.0).sum(-1)",
        "[torch.randn(32, 64), torch.full((32,), 48)]",
        "x, n",
        "",
        "return x[:, :48].sum(-1)",
        "",
        ["takes n for granted"],
    ),
    "offsets": (
        "return torch.stack([x[a:b].sum(0) for a, b in zip(o[:-1].tolist(), o[1:].tolist())])",
        "[torch.randn(64, 8), torch.arange(0, 65, 8)]",
        "x, o",
        "",
        "return x.view(8, 8, 8).sum(1)",
        "",
        ["takes o for granted"],
    ),
    "distinct": (
        "return torch.zeros(64, 8).index_add(0, i, x)",
        "[torch.randn(64, 8), torch.randperm(64)]",
        "x, i",
        "",
        "return torch.zeros(64, 8).index_copy(0, i, x)",
        "",
        ["right only for i like those drawn"],
    ),
    "power": (
        "return x.abs() ** p",
        "[torch.randn(64, 64), 2]",
        "x, p",
        "",
        "return x * x",
        "",
        ["takes p = 2 for granted"],
    ),
    "nested": (
        "return x * c['scale'] + c['more'][0]",
        "[torch.randn(64, 64), {'scale': 3.0, 'more': [0.5]}]",
        "x, c",
        "",
        "return x * 3 + c['more'][0]",
        "",
        ["takes c['scale'] = 3.0 for granted"],
    ),
    # These take nothing for granted.
    "all_of_it": (
        "return torch.where(keep, x * c + b, 0.0).sum(-1)",
        "[torch.randn(64, 64), torch.rand(64, 64) < 0.5, 2.0, 1]",
        "x, keep, c, b",
        "",
        "return ((x * c + b) * keep).nan_to_num(0, 0, 0).sum(-1) if False else "
        "torch.where(keep, b + c * x, 0.0).sum(-1)",
        "",
        [],
    ),
    "indices": (
        "return x[i] * 2",
        "[torch.randn(64, 8), torch.randint(0, 64, (32,))]",
        "x, i",
        "",
        "return (x * 2).index_select(0, i)",
        "",
        [],
    ),
    "a_count": (
        "return torch.topk(x, k).values",
        "[torch.randn(16, 64), 4]",
        "x, k",
        "",
        "return x.sort(descending=True).values[:, :k]",
        "",
        [],
    ),
    "a_shape": (
        "return x.view(16, n, -1).sum(1)",
        "[torch.randn(16, 64), 4]",
        "x, n",
        "",
        "return x.unflatten(1, (4, 16)).sum(1)",
        "",
        [],  # with other numbers the reference raises
    ),
    "statistics": (
        "return self.norm(x)",
        "[torch.randn(32, 64)]",
        "x",
        NORM,
        "return self.norm(x)",
        NORM,
        [],
    ),
}


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(True),
        torch.tensor([False]),
        torch.ones(8, dtype=torch.bool),
        torch.arange(8) < 3,
        torch.tensor(5),
        torch.full((3, 4), 7),
        torch.full((4,), -3),
        torch.full((4,), 1, dtype=torch.uint8),
        torch.tensor([[3], [1]]),
        torch.arange(0, 65, 8),
        torch.randint(0, 9, (4, 5), dtype=torch.int32),
        torch.tensor(0.0),
        torch.ones(6),
        torch.full((4, 4), -torch.inf).triu(1),
        torch.randn(30),
        torch.randn(40).bfloat16(),
    ],
    # Drawn values are no names: each process has others.
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_other_content_is_of_the_same_kind_and_range(t: torch.Tensor) -> None:
    made = [assumptions._otherwise(t, torch.Generator().manual_seed(seed)) for seed in range(8)]
    for other in made:
        assert other.shape == t.shape and other.dtype == t.dtype
        if t.dtype not in (torch.bool,) and not t.is_floating_point():
            top = max(abs(int(t.max())), abs(int(t.min())))
            assert int(other.abs().max() if other.dtype != torch.uint8 else other.max()) <= top
    assert any(not torch.equal(other, t) for other in made)


def test_inputs_that_bear_no_other_seed_are_judged_all_the_same(evaluator: Evaluator) -> None:
    source = task_of("return torch.tril(a) @ a", "draw()", "", "a") + (
        "\n\ndef draw():\n    torch.manual_seed(7)\n    x = torch.randn(16, 16)\n"
        "    if abs(float(x[0, 0]) - float(torch.randn(16, 16, generator=torch.Generator()"
        ".manual_seed(7))[0, 0])) > 0 or torch.initial_seed() != 7:\n"
        "        raise ValueError('another seed')\n    return [x]\n"
    )
    v = evaluator.verdict(source, f"{source}\n\nclass ModelNew(Model):\n    pass\n")
    assert v["status"] == "correct" and v["assumes"] == [], v["reason"]


def test_zero_is_all_that_is_like_nothing_but_zeros() -> None:
    zeros = torch.zeros(5, dtype=torch.int64)
    assert torch.equal(assumptions._otherwise(zeros, torch.Generator()), zeros)


@pytest.mark.parametrize("name", TASKS)
def test_what_is_taken_for_granted_is_told(evaluator: Evaluator, name: str) -> None:
    forward, inputs, arguments, init, own, own_init, told = TASKS[name]
    source = task_of(forward, inputs, init, arguments).replace(
        "import torch.nn as nn\n", "import torch.nn as nn\nimport torch.nn.functional as F\n"
    )
    candidate = model_new(own, arguments, own_init)
    for level in ("quick", "certify"):
        v = evaluator.verdict(source, candidate, level)
        assert v["status"] == ("certified" if level == "certify" else "correct"), v["reason"]
        assert len(v["assumes"]) == len(told), v["assumes"]
        assert all(w in s for w, s in zip(told, v["assumes"], strict=True)), v["assumes"]
    eager = f"{source}\n\nclass ModelNew(Model):\n    pass\n"
    v = evaluator.verdict(source, eager, strict_inputs=True)
    assert v["status"] == "correct" and v["assumes"] == [], f"{v['reason']} {v['assumes']}"


FOLDED = """    def __init__(self):
        super().__init__()
        linear = nn.Linear(32, 16)
        signs = torch.randn(32).sign()
"""


def test_buffers_that_come_of_the_seed_are_no_constants(evaluator: Evaluator) -> None:
    """Of who is judged by the seed: it was right with others. What no seed changes is told."""
    own = (
        FOLDED + "        self.linear = linear\n        self.register_buffer('signs', signs)\n"
        "        self.register_buffer('table', torch.arange(1.0, 17.0))\n\n"
    )
    source = task_of("return self.linear(x * self.signs) * self.table", "[torch.randn(8, 32)]", own)
    folds = (
        FOLDED + "        self.weight = nn.Parameter(linear.weight * signs)\n"
        "        self.bias = linear.bias\n\n"
    )
    body = "return F.linear(x, self.weight, self.bias) * torch.arange(1.0, 17.0)"
    v = evaluator.verdict(source, model_new(body, "x", folds))
    assert v["status"] == "correct" and v["weights"] == "by seed", v["reason"]
    assert [s for s in v["assumes"] if "table" in s] == v["assumes"] != []
