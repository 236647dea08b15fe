"""Contamination: near-copies are found, other tasks are not taken for copies."""

from __future__ import annotations

import random

import near_copies
import pytest

import alike

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn(128, 512)]\n\n\ndef get_init_inputs():\n    return []\n"


def model(made: str, forward: str, takes: str = "x") -> str:
    init = "".join(f"        {line}\n" for line in made.splitlines())
    body = "".join(f"        {line}\n" for line in forward.splitlines())
    return f"{HEAD}class Model(nn.Module):\n    def __init__(self, wide=512, out=256):\n        super().__init__()\n{init}\n    def forward(self, {takes}):\n{body}{TAIL}"


# Protected tasks in the styles of hand-written benchmarks.
PROTECTED = {
    "linear_relu": model(
        "self.fc = nn.Linear(wide, out)\nself.act = nn.ReLU()", "return self.act(self.fc(x))"
    ),
    "conv_bias_pool": model(
        "self.conv = nn.Conv2d(8, 16, 3, padding=1)\nself.shift = nn.Parameter(torch.randn(16, 1, 1))\nself.pool = nn.MaxPool2d(2)",
        "x = self.conv(x)\nx = torch.relu(x)\nx = x + self.shift\nreturn self.pool(x)",
    ),
    "swish": model("", "return x * torch.sigmoid(x)"),
    "mlp": model(
        "layers = []\nfor _ in range(3):\n    layers.append(nn.Linear(wide, wide))\n    layers.append(nn.GELU())\nself.net = nn.Sequential(*layers)",
        "return self.net(x)",
    ),
    "mse": model("", "return torch.mean((x - y) ** 2)", "x, y"),
    "softmax_scaled": model(
        "", "x = F.softmax(x * 0.5, dim=1)\nx = x.sum(dim=1, keepdim=True)\nreturn x / 3.0 - 1.0"
    ),
    "norm_residual": model(
        "self.norm = nn.LayerNorm(wide)\nself.fc = nn.Linear(wide, wide)",
        "y = self.norm(x)\ny = F.gelu(self.fc(y))\nreturn x + y",
    ),
}
# The same computation in other words.
SAME = {
    "a root": (model("", "return torch.sqrt(x)"), model("", "return x ** 0.5")),
    "silu": (PROTECTED["swish"], model("self.s = nn.SiLU()", "return self.s(x)")),
    "weight by hand": (
        PROTECTED["linear_relu"],
        model(
            "self.w = nn.Parameter(torch.randn(64, 32))\nself.b = nn.Parameter(torch.zeros(64))",
            "return (x @ self.w.T + self.b).clamp(min=0)",
        ),
    ),
    "loss module": (
        PROTECTED["mse"],
        model("self.loss = nn.MSELoss()", "return self.loss(x, y)", "x, y"),
    ),
    "softmax by hand": (
        model("", "return torch.softmax(x, 1)"),
        model("", "e = x.exp()\nreturn e / e.sum(1, keepdim=True)"),
    ),
    "max or amax": (model("", "return torch.max(x, dim=1)[0]"), model("", "return x.amax(dim=-1)")),
    "rms norm": (
        model("self.n = nn.RMSNorm(wide)", "return self.n(x)"),
        model("", "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"),
    ),
    "gelu of tanh": (
        model("", "return F.gelu(x)"),
        model("", "return 0.5 * x * (1 + torch.tanh(0.797 * (x + 0.0447 * x**3)))"),
    ),
    "global pooling": (
        model("self.p = nn.AdaptiveAvgPool2d((1, 1))", "return self.p(x)"),
        model("", "return x.mean(dim=[2, 3])"),
    ),
    "operands swapped": (
        model("", "return torch.relu(x) + torch.tanh(y)", "x, y"),
        model("", "return torch.tanh(x) + F.relu(y)", "x, y"),
    ),
}
# Tasks that share much and are others.
OTHER = {
    "another pooling": (
        PROTECTED["conv_bias_pool"],
        PROTECTED["conv_bias_pool"].replace("MaxPool2d", "AvgPool2d"),
    ),
    "another activation": (
        PROTECTED["linear_relu"],
        PROTECTED["linear_relu"].replace("nn.ReLU", "nn.Tanh"),
    ),
    "another order": (
        model("self.f = nn.Linear(wide, out)", "return self.f(torch.relu(x))"),
        PROTECTED["linear_relu"],
    ),
    "a step less": (
        PROTECTED["norm_residual"],
        PROTECTED["norm_residual"].replace("return x + y", "return y"),
    ),
    "a square and a product": (model("", "return x * x"), model("", "return x * y", "x, y")),
    "one over and over one": (model("", "return 2.0 / x"), model("", "return x / 2.0")),
}


@pytest.mark.parametrize("way", near_copies.WAYS)
@pytest.mark.parametrize("name", PROTECTED)
def test_a_planted_near_copy_is_found(name: str, way: str) -> None:
    known = [(n, alike.canonical(s)) for n, s in PROTECTED.items()]
    copy = near_copies.WAYS[way](PROTECTED[name], random.Random(3))
    assert copy != PROTECTED[name]
    assert alike.nearest(alike.canonical(copy), known, 0.9) == (1.0, name)


@pytest.mark.parametrize("name", SAME)
def test_other_words_for_one_computation_are_alike(name: str) -> None:
    one, other = map(alike.canonical, SAME[name])
    assert one.tree == other.tree


@pytest.mark.parametrize("name", OTHER)
def test_other_tasks_are_not_taken_for_copies(name: str) -> None:
    one, other = map(alike.canonical, OTHER[name])
    assert alike.similarity(one, other) <= 0.9


def leaf(name: str) -> alike.Tree:
    return (name, ())


def test_distances_of_zhang_and_shasha() -> None:
    # Figure 3 of their paper: f(d(a c(b)) e) and f(c(d(a b)) e) are two edits apart.
    one = ("f", (("d", (leaf("a"), ("c", (leaf("b"),)))), leaf("e")))
    two = ("f", (("c", (("d", (leaf("a"), leaf("b"))),)), leaf("e")))
    assert alike.distance(one, two) == 2
    assert alike.distance(one, one) == 0
    assert alike.distance(leaf("a"), leaf("b")) == 1
    assert alike.distance(one, leaf("f")) == 5


def test_no_similarity_is_over_its_bound() -> None:
    trees = [alike.canonical(s) for s in PROTECTED.values()]
    for a in trees:
        for b in trees:
            assert alike.similarity(a, b) <= alike.bound(a, b) + 1e-12
            assert alike.similarity(a, b) == pytest.approx(alike.similarity(b, a))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Model(", "no Python"),
        ("x = 1", "no class Model"),
        ("class Model:\n    pass", "no class Model with a forward"),
        ("x = " + "(" * 5000 + ")" * 5000, "no Python|nested"),
        (
            "class Model:\n    def forward(self, x):\n        return " + "-" * 20000 + "x",
            "no Python|nested",
        ),
        ("class Model:\n    def forward(self, x):\n        return self.forward(x)", None),
        ("# " + "x" * (2 << 20), "too large"),
    ],
)
def test_hostile_text_is_refused_or_read(source: str, said: str | None) -> None:
    if said is None:
        alike.canonical(source)
        return
    with pytest.raises(alike.Unreadable, match=said):
        alike.canonical(source)


def test_a_tree_that_doubles_at_every_step_ends() -> None:
    steps = "\n".join(f"x = torch.sin(x) + torch.cos(x) * {i}.0" for i in range(2, 60))
    assert alike.canonical(model("", steps + "\nreturn x")).size < 50_000
