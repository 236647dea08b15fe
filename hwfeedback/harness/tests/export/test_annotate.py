"""What is written round a file that is handed out: its words, and what checks its calls."""

from __future__ import annotations

import ast
import copy
import types
from typing import Any

import numpy as np
import pytest
import torch

from kwharness.base import for_reference, operations
from kwharness.base.requests import Request
from kwharness.export import (
    annotate,
    describe,
    file_loader,
    guard,
    inline_loader,
    reference_weights,
)
from kwharness.export.file_facts import About, Named, Tensor, is_name, literal
from kwharness.model import weights
from kwharness.numerics import families

REFERENCE = '''
"""Scales what is
above zero.

More words.
"""
from __future__ import annotations
import torch
import torch.nn as nn

WIDTH = 32

def unused(x: Nothing) -> Nothing:
    return x

def filled(t: torch.Tensor, by: float = 0.5) -> None:
    nn.init.normal_(t, by)

class Part(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(n))
        filled(self.scale)

class Model(nn.Module):
    def __init__(self, n: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.part = Part(n)

    def forward(self, x, gain, *, factor=2.0):
        return torch.relu(x) * self.part.scale * gain["by"] * factor

def get_inputs():
    return [torch.randn(4, WIDTH), {"by": torch.randn(WIDTH)}]

def get_init_inputs():
    return [WIDTH]
'''
# It computes with PyTorch: nothing is compiled here.
CANDIDATE = """import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.part = torch.nn.Module()
        self.part.scale = torch.nn.Parameter(torch.zeros(width))

    def forward(self, a, b):
        return torch.relu(a) * self.part.scale * b["by"] * 2
"""


def signature(*names: str, keywords: tuple[str, ...] = (), **defaults: Any) -> Named:
    trees = {n: {"value": v} for n, v in defaults.items()}
    given = [*names, *keywords]
    return Named(names=given, keywords=list(keywords), defaults=trees, any=False)


def tensor(argument: int, *shape: int | tuple[str, int], **more: Any) -> Tensor:
    sizes = [n if isinstance(n, int) else n[1] for n in shape]
    free = [None if isinstance(n, int) else n[0] for n in shape]
    made = Tensor(argument=argument, path=[], dtype="float32", shape=sizes, free=free, order=[])
    return made | more  # type: ignore[return-value]


ABOUT = About(
    task="scaled",
    reference=REFERENCE,
    operators=["aten.relu", "aten.mul"],
    inputs=[tensor(0, ("batch", 4), 32), tensor(1, 32, path=["by"])],
    arguments=2,
    forward=signature("x", "gain", keywords=("factor",), factor=2.0),
    init=[{"value": 32}],
    constructor=signature("n", "eps", eps=1e-5),
    weights=["part.scale"],
    outputs=["float32 (4, 32)"],
    device="cpu",
    machine="a machine",
    tried={"batch": [2, 5, 8]},
    only=[],
    rebuilds=True,
    takes=False,
    made=True,
    loads="load_state_dict",
    open=False,
    version="0.1.0",
)


def loaded(text: str) -> types.ModuleType:
    module = types.ModuleType("handed_out")
    exec(compile(text, "handed_out.py", "exec", dont_inherit=True), module.__dict__)
    return module


def made(candidate: str = CANDIDATE, **more: Any) -> Any:
    return loaded(annotate.written(candidate, ABOUT | more))  # type: ignore[arg-type]


def reference() -> Any:
    return loaded(REFERENCE).Model(32)  # type: ignore[attr-defined]


def inputs(*shape: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return torch.randn(*shape or (4, 32)), {"by": torch.randn(32)}


def test_a_file_begins_with_what_its_user_has_to_know() -> None:
    module = made('"""My words.\n\nAnd "more" \\\\ of them."""\n' + CANDIDATE)
    assert module.__doc__ == (
        "Scales what is above zero.\n\n"
        "Certified by kernelwright 0.1.0. ModelNew stands for Model of scaled.py.\n\n"
        "Takes x: float32 (batch, 32)\n"
        "Takes gain['by']: float32 (32,)\n"
        "Takes other sizes: any batch (tried: 2, 4, 5, 8)\n"
        "Returns: float32 (4, 32) where batch is 4\n"
        "Weights: part.scale; made as the reference makes them, under one seed the same. "
        "load_state_dict takes the reference's state_dict.\n"
        "Device: the CPU; it was certified on the CPU (a machine).\n"
        "Inference only: call it under torch.no_grad(). It computes no gradients.\n"
        "Speedup: not measured.\n"
        "Certificate: scaled.certificate.json\n\n"
        'My words.\n\nAnd "more" \\ of them.\n'
    )


@pytest.mark.parametrize("front", ["", "#!/usr/bin/python3\n", '"""Mine."""\n'])
def test_what_said_that_it_is_not_certified_goes(front: str) -> None:
    note = f"{annotate.NOTE}No certificate belongs to it.\n# Verdict: correct (quick).\n\n"
    candidate = front + CANDIDATE
    assert annotate.written(note + candidate, ABOUT) == annotate.written(candidate, ABOUT)
    for own in (note.replace("\n# V", "\nx = 1  # V"), note.replace("NOT C", "Not c")):
        assert own.split("\n")[0] in annotate.written(own + candidate, ABOUT)


@pytest.mark.parametrize(
    "words",
    ['"""', "\\", "\\N", 'ends with a quote"', "\u202e turned", "\x00\x07", "a\n\nCertificate: b"],
)
def test_words_of_others_stay_words(words: str) -> None:
    candidate = f"{words!r}\nimport torch\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    said = f"{words!r}\n" + REFERENCE.replace('"""', "'''").replace("'''Sc", "x = '''Sc", 1)
    for given in (candidate, candidate.partition("\n")[2]):
        text = annotate.written(given, ABOUT | {"reference": said})  # type: ignore[arg-type]
        assert isinstance(ast.get_docstring(ast.parse(text)), str)
        assert "\u202e" not in text and "\x00" not in text
        assert annotate.written(text, ABOUT | {"reference": said}) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("front", ["", "#!/usr/bin/python3\n# -*- coding: utf-8 -*-\n", "\ufeff"])
@pytest.mark.parametrize("own", ["", "'one'\n", "'one'; x = 1\n", '"""two\nlines"""\n\n'])
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
def test_a_file_is_written_once(front: str, own: str, end: str) -> None:
    given = front + own + "from __future__ import annotations\n" * (";" not in own) + CANDIDATE
    text = annotate.written(given.rstrip() + end, ABOUT)
    assert text.startswith(front)
    compile(text.encode(), "handed_out.py", "exec")
    other = annotate.written(text, ABOUT | {"rebuilds": False, "init": []})  # type: ignore[arg-type]
    assert "_kernelwright_built" in text and "_kernelwright_built" not in other
    assert annotate.written(other, ABOUT) == text == annotate.written(text, ABOUT)


@pytest.mark.parametrize(
    "more", ["X = 3", "def f():\n    return 3", "def f():\n    return 3\n\n\nX = f()"]
)
def test_what_its_user_adds_stays(more: str) -> None:
    text = annotate.written(CANDIDATE, ABOUT)
    again = annotate.written(f"{text}\n\n{more}\n", ABOUT)
    assert again == annotate.written(f"{CANDIDATE}\n\n{more}\n", ABOUT)
    assert again.count(guard.GUARD) == 1 and more in again


@pytest.mark.parametrize("front", ["", "\n"])
def test_a_mark_in_a_literal_is_a_literal(front: str) -> None:
    text = f'{CANDIDATE}\n\nWORDS = """{front}{file_loader.MARK}g++.\nmore"""\n'
    words = loaded(annotate.written(text, ABOUT)).WORDS  # type: ignore[attr-defined]
    assert words == f"{front}{file_loader.MARK}g++.\nmore"
    native = "from kernelwright import native\n\nlib = native(source='extern \"C\" void f() {}')\n"
    compile(inline_loader.standalone(native + text, about=ABOUT), "handed_out.py", "exec")


def test_where_a_file_s_own_lines_are_does_not_depend_on_what_it_takes() -> None:
    """By their numbers Triton knows kernels."""
    unknown = {"open": True, "tried": {}, "inputs": [tensor(0, 4, 32), tensor(1, 32, path=["by"])]}
    first = annotate.written(CANDIDATE, ABOUT | unknown)  # type: ignore[arg-type]
    then = annotate.written(CANDIDATE, ABOUT)
    at = [t.splitlines().index("class ModelNew(torch.nn.Module):") for t in (first, then)]
    assert at[0] == at[1]


def test_a_file_has_the_weights_of_its_reference() -> None:
    torch.manual_seed(3)
    expected = reference()
    torch.manual_seed(3)
    module = made()
    got = module.ModelNew(32)
    assert torch.equal(got.part.scale, expected.part.scale) and got.part.scale.any()
    x, gain = inputs()
    with torch.no_grad():
        assert torch.equal(got(x, gain), expected(x, gain))
        assert torch.equal(got(gain=gain, x=x), expected(x, gain))
        assert torch.equal(got(x, gain, factor=2), expected(x, gain))
        copied = copy.deepcopy(module.ModelNew(n=32))
        copied.load_state_dict(expected.state_dict())
        assert torch.equal(copied(x, gain), expected(x, gain))


def test_a_constructor_draws_what_it_drew_before() -> None:
    """So what only looks like the reference's by its order, or its seed, stays that."""
    torch.manual_seed(3)
    drawn = torch.randn(2)
    kept = CANDIDATE.replace(
        "torch.zeros(width)", "torch.zeros(width)); self.own = (torch.randn(2)"
    )
    torch.manual_seed(3)
    assert torch.equal(made(kept).ModelNew(32).own, drawn)


def test_one_that_takes_a_state_by_itself_gets_it_so() -> None:
    own = CANDIDATE.replace("self.part.scale", "self.gain").replace(
        "    def forward",
        "    def load_reference_state(self, state):\n"
        "        self.gain.copy_(state['part.scale'])\n\n    def forward",
    )
    torch.manual_seed(3)
    expected = reference()
    torch.manual_seed(3)
    assert torch.equal(
        made(own, takes=True, loads="load_reference_state").ModelNew(32).gain, expected.part.scale
    )


def grad(t: torch.Tensor) -> torch.Tensor:
    return t.clone().requires_grad_()


X, GAIN = torch.randn(4, 32), {"by": torch.randn(32)}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "a list": (([1.0], GAIN), {}, TypeError, "x must be a torch.Tensor, is a list"),
    "numpy": ((X.numpy(), GAIN), {}, TypeError, "x must be a torch.Tensor, is a numpy.ndarray"),
    "half": ((X.half(), GAIN), {}, TypeError, "x must be torch.float32, is torch.float16"),
    "meta": ((X.to("meta"), GAIN), {}, ValueError, "x must be on the CPU, is on meta"),
    "width": ((X[:, 1:], GAIN), {}, ValueError, "the shape (batch, 32), has (4, 31)"),
    "dims": ((X[0], GAIN), {}, ValueError, "the shape (batch, 32), has (32,)"),
    "no batch": ((X[:0], GAIN), {}, ValueError, "x has no elements: its shape is (0, 32)"),
    "no part": ((X, {}), {}, TypeError, "ModelNew takes a tensor gain['by'], and has none"),
    "None": ((X, None), {}, TypeError, "ModelNew takes a tensor gain['by'], and has none"),
    "part": ((X, {"by": X}), {}, ValueError, "gain['by'] must have the shape (32,), has (4, 32)"),
    "transposed": ((torch.randn(32, 4).T, GAIN), {}, ValueError, "call .contiguous() first"),
    "part of rows": ((torch.randn(4, 64)[:, :32], GAIN), {}, ValueError, "the strides (64, 1)"),
    "expanded": ((X[:1].expand(4, 32), GAIN), {}, ValueError, "x must be contiguous"),
    "other batch": ((torch.randn(32, 5).T, GAIN), {}, ValueError, "x must be contiguous"),
    "negated": ((torch._neg_view(X), GAIN), {}, ValueError, "call .resolve_neg().resolve_conj()"),
    "sparse": ((X.to_sparse(), GAIN), {}, ValueError, "must be dense, is torch.sparse_coo"),
    "opaque": ((X.to_mkldnn(), GAIN), {}, ValueError, "must be dense, is torch._mkldnn"),
    "a part": ((X, {"by": torch.randn(64)[::2]}), {}, ValueError, "gain['by'] must be contiguous"),
    "factor": ((X, GAIN), {"factor": 3.0}, ValueError, "factor = 2.0 alone, not 3.0"),
    "missing": ((X,), {}, TypeError, "missing 1 required positional argument: 'gain'"),
    "unknown": ((X, GAIN), {"more": 1}, TypeError, "unexpected keyword argument 'more'"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_what_it_is_not_right_for_is_one_clear_error(call: str) -> None:
    args, named, error, says = CALLS[call]
    model = made().ModelNew(32)
    with torch.no_grad(), pytest.raises(error) as e:
        model(*args, **named)
    assert says in str(e.value)
    with torch.no_grad():  # and nothing is lost
        assert model(X, GAIN).shape == X.shape


def test_it_takes_the_order_of_dimensions_that_it_was_right_on() -> None:
    last = [tensor(0, ("batch", 4), 3, 5, 7, order=[0, 2, 3, 1])]
    text = CANDIDATE.replace("a, b", "a").replace(' * self.part.scale * b["by"]', "")
    given: dict[str, Any] = {"inputs": last, "arguments": 1, "forward": signature("x")}
    model, x = made(text, **given).ModelNew(32), torch.randn(4, 3, 5, 7)
    with torch.no_grad():
        for t in (x, x[:2]):
            model(t.contiguous(memory_format=torch.channels_last))
            with pytest.raises(ValueError, match=r"in the order \(0, 2, 3, 1\) of its dimensions"):
                model(t.contiguous())


SETS = CANDIDATE.replace("def forward", "def run").replace(
    "    def run", "        SET\n\n    def run"
)


@pytest.mark.parametrize(
    "how", ["self.forward = self.run", "setattr(self, 'forward', self.run)", "pass"]
)
@pytest.mark.parametrize("init", [[], [{"value": 32}]])
def test_a_forward_that_the_constructor_sets_is_checked_too(how: str, init: Any) -> None:
    text = SETS.replace("SET", how) if how != "pass" else CANDIDATE
    about: dict[str, Any] = {"init": init, "rebuilds": False}
    if not init:
        about["constructor"] = signature()
        text = text.replace("width):", "width=32):")
    written = annotate.written(text, ABOUT | about)  # type: ignore[arg-type]
    assert annotate.written(written, ABOUT | about) == written  # type: ignore[arg-type]
    module = loaded(written)
    model = module.ModelNew(32) if init else module.ModelNew()
    for each in (model, copy.deepcopy(model)):
        each.part.scale.data.fill_(2.0 if each is model else 3.0)
        with torch.no_grad():
            expected = torch.relu(X) * each.part.scale * GAIN["by"] * 2
            assert torch.equal(each(X, GAIN), expected)
            with pytest.raises(TypeError, match=r"x must be torch\.float32"):
                each(X.half(), GAIN)
        with pytest.raises(RuntimeError, match=r"torch\.no_grad\(\)"):
            each(X, GAIN)


def test_a_file_for_a_gpu_is_for_the_current_one() -> None:
    text = annotate.written(CANDIDATE, ABOUT | {"device": "cuda"})  # type: ignore[arg-type]
    assert "call it under torch.cuda.device({value.get_device()})" in text
    model = loaded(text).ModelNew(32)  # type: ignore[attr-defined]
    with torch.no_grad(), pytest.raises(ValueError, match="x must be on a GPU, is on cpu"):
        model(X, GAIN)
    if torch.cuda.device_count() > 1:
        model = model.to("cuda:1")
        with torch.no_grad(), pytest.raises(ValueError, match="must be on the current GPU"):
            model(X.to("cuda:1"), {"by": GAIN["by"].to("cuda:1")})


def test_conjugates_are_no_plain_numbers() -> None:
    given: dict[str, Any] = {"inputs": [tensor(0, 4, dtype="complex64")], "arguments": 1}
    text = CANDIDATE.replace("a, b", "a").replace("torch.relu(a) * self.part.scale *", "a *")
    model = made(text.replace(' b["by"] *', ""), **given, forward=signature("x")).ModelNew(32)
    x = torch.randn(4, dtype=torch.complex64)
    with torch.no_grad():
        assert torch.equal(model(x), 2 * x)
        with pytest.raises(ValueError, match="negates or conjugates"):
            model(x.conj())


@pytest.mark.parametrize(
    ("args", "named", "says"),
    [
        ((16,), {}, "n = 32 alone, not 16"),
        ((32, 1e-3), {}, "eps = 1e-05 alone, not 0.001"),
        ((np.zeros(3),), {}, "n = 32 alone"),
        ((), {"n": "32"}, "n = 32 alone, not '32'"),
    ],
)
def test_a_constructor_is_for_what_was_certified(args: Any, named: Any, says: str) -> None:
    with pytest.raises(ValueError, match="certified for") as e:
        made().ModelNew(*args, **named)
    assert says in str(e.value)
    made().ModelNew(32, eps=1e-5)


def test_it_refuses_gradients_and_says_what_to_do() -> None:
    model = made().ModelNew(32)
    x, gain = inputs()
    with pytest.raises(RuntimeError, match=r"part\.scale requires grad.*torch\.no_grad\(\)"):
        model(x, gain)
    model.requires_grad_(False)
    assert model(x, gain).shape == x.shape
    with pytest.raises(RuntimeError, match=r"x requires grad.*torch\.no_grad\(\)"):
        model(grad(x), gain)
    with pytest.raises(RuntimeError, match=r"gain\['by'\] requires grad"):
        model(x, {"by": grad(gain["by"])})
    with torch.inference_mode():
        assert model(grad(x), gain).shape == x.shape


def test_other_sizes_are_those_it_was_right_on() -> None:
    any_of, one_of = made().ModelNew(32), made(only=["batch"]).ModelNew(32)
    with torch.no_grad():
        for rows in (1, 2, 4, 5, 8, 77):
            x, gain = inputs(rows, 32)
            assert any_of(x, gain).shape == (rows, 32)
            if rows in (2, 4, 5, 8):
                assert one_of(x, gain).shape == (rows, 32)
                continue
            with pytest.raises(ValueError, match="must have the shape"):
                one_of(x, gain)
    both = [tensor(0, ("batch", 4), 32), tensor(1, ("batch", 4))]
    text = CANDIDATE.replace('b["by"]', "b[:, None]")
    model = made(text, inputs=both, rebuilds=False).ModelNew(32)
    with torch.no_grad():
        assert model(torch.randn(7, 32), torch.randn(7)).shape == (7, 32)
        with pytest.raises(ValueError, match=r"gain must have the shape \(batch,\), has \(3,\)"):
            model(torch.randn(7, 32), torch.randn(3))


@pytest.mark.parametrize(
    "name", ["input", "value", "name", "given", "kernel", "weights", "torch", "_x", "self"]
)
def test_arguments_may_have_any_name(name: str) -> None:
    forward = signature(name, "gain") if name != "self" else signature("gain")
    model = made(forward=forward, constructor=signature(name)).ModelNew(32)
    with torch.no_grad():
        assert model(X, GAIN).shape == X.shape
        if is_name(name):
            assert made(forward=forward).ModelNew(32)(**{name: X, "gain": GAIN}).shape == X.shape


def test_what_has_no_names_is_given_in_order() -> None:
    said = Named(**{**signature(), "any": True})
    model = made(forward=said, constructor=said).ModelNew(32)
    with torch.no_grad():
        assert model(X, GAIN).shape == X.shape
        with pytest.raises(TypeError, match=r"input0 must be torch\.float32"):
            model(X.half(), GAIN)


SIZE = families.Shape(((0, 0), (1, 0)), 8)


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ({}, []),
        ({((0, 0),): {8: True, 2: True}}, [("batch", [2, 8], True)]),
        ({((0, 0),): {8: True, 2: False}}, [("batch", [8], False)]),
        ({((0, 0),): {8: False}}, []),
        (
            {((0, 0), (1, 0)): {8: True}, ((0, 1),): {37: False, 31: True}},
            [("batch", [8], True), ("width", [31], False)],
        ),
        ({((0, 0),): {8: True}, ((0, 0), (1, 0)): {5: True}}, [("batch", [8], True)]),
        (
            {((0, 0),): {8: True}, ((1, 0),): {5: True}},
            [("batch", [8], True), ("batch1", [5], True)],
        ),
    ],
)
def test_which_sizes_are_free(tried: Any, found: Any) -> None:
    shapes = {families.Shape(d, n): ok for d, of in tried.items() for n, ok in of.items()}
    assert [(f.name, f.right, f.any) for f in describe.free(shapes)] == found


def test_what_the_referee_knows_is_what_is_written() -> None:
    request = {
        "task": {"name": "scaled", "source": REFERENCE, "operators": ["aten.relu"]},
        "specs": {"model": "a machine"},
        "kernelwright_version": "0.1.0",
        "candidate": {"source": ""},
    }
    said = for_reference.Weights(
        names=["part.scale"],
        state=[],
        trainable=[],
        moved=[],
        tied=[],
        constants=[],
        training=False,
        arguments=[],
        forward=for_reference.Signature(**ABOUT["forward"]),
        constructor=for_reference.Signature(**ABOUT["constructor"]),
    )
    given_init = operations.Tensors([], 0)
    told = for_reference.Constructed({"list": [{"value": 32}]}, given_init, said, [])
    tree = {"list": [{"t": 1}, {"tuple": [{"value": 1}, {"dict": [["by", {"t": 0}]]}]}]}
    given = (tree, [torch.empty(32), torch.empty(4, 32)])
    plan = weights.Plan(weights.BY_NAME, True, unlike=["part.scale"])
    tried = {families.Shape(((1, 0),), 8): True}
    orders = [[], [1, 4]]
    asked = Request.from_json(request)
    found = describe.about(asked, told, plan, given, [torch.empty(4, 32)], tried, orders)
    assert found == ABOUT | {
        "operators": ["aten.relu"],
        "inputs": [tensor(0, ("batch", 4), 32, order=[1, 0]), tensor(1, 32, path=[1, "by"])],
        "tried": {"batch": [8]},
    }
    unknown = describe.about(asked, told, plan, given, [], None)
    assert unknown["open"] and unknown["inputs"][0]["free"] == [None, None]


SCALED = """class Model:
    def __init__(self):
        self.by = GAIN
"""


@pytest.mark.parametrize(
    "more",
    [
        "GAIN = 3.0",
        "GAIN: float = 3.0\nOTHER = GAIN + 1",
        "GAIN = 2.0\nGAIN = 3.0\nimport math, os\nassert math",
        "try:\n    import math\nexcept ImportError:\n    math = None\nGAIN = 3.0",
        "'words'\nGAIN = 3.0\nif __name__ == '__main__':\n    print(GAIN)",
        "if True:\n    GAIN = 3.0\nelse:\n    GAIN = 4.0",
        "def _construct():\n    return 3.0\n\nGAIN = _construct()",
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_what_a_constructor_needs_comes_with_it(more: str, behind: bool) -> None:
    parts = [SCALED, more] if behind else [more, SCALED]
    module = loaded(reference_weights.constructor("\n".join(parts), "made"))
    assert module.made()().by == 3.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["_construct", "_give", "_compare", "_fixed", "_drawn", "_model"])
def test_names_of_the_reference_do_not_meet_those_round_it(name: str) -> None:
    torch.manual_seed(3)
    text = REFERENCE.replace("filled", name)
    expected = loaded(text).Model(32)  # type: ignore[attr-defined]
    torch.manual_seed(3)
    assert torch.equal(made(reference=text).ModelNew(32).part.scale, expected.part.scale)


MADE = "made as the reference makes them, under one seed the same"
UNMADE = "not made as the reference makes them: load them before use"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, f"{MADE}. load_state_dict takes the reference's state_dict."),
        ({"made": False, "rebuilds": False}, f"part.scale; {UNMADE}. load_state_dict takes"),
        (
            {"takes": True, "loads": "load_reference_state"},
            f"{MADE}. load_reference_state takes the reference's state_dict.",
        ),
        (
            {"takes": True, "loads": "load_reference_state", "reference": "Model = make()"},
            f"{UNMADE}. load_reference_state takes",
        ),
        (
            {"loads": ""},
            f"part.scale, under ModelNew's own names or in its own form; {MADE}. load_state_dict "
            "takes what ModelNew's own state_dict() gave, not the reference's.",
        ),
        ({"weights": []}, "Weights: none"),
    ],
)
def test_what_is_said_of_weights_is_what_was_checked(more: dict[str, Any], says: str) -> None:
    assert says in (made(**more).__doc__ or "")


def test_of_a_reference_only_what_constructs_is_kept() -> None:
    text = reference_weights.constructor(REFERENCE, "made")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef) and function.name == "made"
    kept = [n.name for n in function.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    assert kept == ["filled", "Part", "Model"]
    assert "relu" not in text and "Nothing" not in text and "__future__" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Model(", "not Python"),
        ("Model = make()", "not one class"),
        ("from torch.nn import *\nclass Model(Module): pass", "all names"),
        ("if x:\n    class Model: pass", "not one class"),
        ("class Model: pass\nclass Model: pass", "not one class"),
        (f"GAIN = 1.0\nGAIN *= 0.02\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = 1.0\nfor i in range(3):\n    GAIN = i\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = 1.0\nwith x():\n    GAIN = 2\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = 1.0\nif x:\n    GAIN = 2\n    GAIN += 2\n{SCALED}", "line 2"),
        (f"GAIN = [1.0]\nGAIN[0] = 2\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = [1.0]\nGAIN.append(2)\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = [1.0]\nlast = GAIN.pop()\n{SCALED}", "line 2 of the reference"),
        (f"GAIN = 1.0\n{SCALED}\nprint('seen')", "line 6 of the reference"),
        (f"GAIN = 1.0\n{SCALED}\nModel.more = 3", "line 6 of the reference"),
        (f"GAIN = 1.0\n{SCALED}\ndef f():\n    global GAIN\n    GAIN = 2", "changes GAIN"),
        ("class Model:\n    def __init__(self): self.x = globals()['y']", "names of its module"),
    ],
)
def test_a_constructor_that_cannot_stand_elsewhere(text: str, says: str) -> None:
    with pytest.raises(reference_weights.Unbuilt, match=says):
        reference_weights.constructor(text, "made")
    model = made(reference=text).ModelNew(32)  # and it has the weights that it makes by itself
    assert not model.part.scale.any()


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"value": None}, "None"),
        ({"value": -1.5}, "-1.5"),
        ({"value": "a'\n"}, '"a\'\\n"'),
        ({"tuple": [{"value": 1}]}, "(1,)"),
        ({"list": []}, "[]"),
        (
            {"dict": [["a", {"dtype": "float16"}], [2, {"value": True}]]},
            "{'a': torch.float16, 2: True}",
        ),
        ({"t": 0}, None),
        ({"float": "nan"}, None),
        ({"dtype": "a.b()"}, None),
        ({"value": [1]}, None),
        ([], None),
    ],
)
def test_what_is_given_becomes_a_literal(tree: Any, text: str | None) -> None:
    if text is None:
        with pytest.raises(ValueError, match="no literal"):
            literal(tree)
    else:
        assert literal(tree) == text


def test_a_short_loader_stands_behind() -> None:
    native = "from kernelwright import native\n\nlib = native(source='extern \"C\" void f() {}')\n"
    text = inline_loader.standalone(native + CANDIDATE, about=ABOUT)
    at = [text.index(part) for part in ('"""', "class ModelNew", guard.GUARD, "def _functions_0")]
    assert at == sorted(at)
    assert inline_loader.standalone(text, about=ABOUT) == text
    assert "from kernelwright import native as _native" in inline_loader.read_as(text)
    assert len(inline_loader.read_as(text).splitlines()) == len(text.splitlines())


def test_extensions_are_shared_by_copies() -> None:
    holds = "import ctypes, math\n" + CANDIDATE.replace(
        "        self.part = ", "        self.ext = math\n        self.part = "
    )
    model = made(holds).ModelNew(32)
    copied = copy.deepcopy(model)
    assert copied.ext is model.ext
    assert copied.part.scale is not model.part.scale
    assert torch.equal(copied.part.scale, model.part.scale)
