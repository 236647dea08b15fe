"""Writes round a certified candidate what its user has to know: a docstring in front, and behind it
what checks each call for what the file is right for.

``About`` is what the referee knows of it, as JSON; names and texts of the reference in it are
foreign, and become literals here. The candidate's own text stays as it is.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import io
import keyword
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import loaders
import rebuilding

GUARD = "# What this file is right for, checked before each call. Written by kernelwright.\n"
WRITTEN = "Certified by kernelwright"  # begins the second part of a docstring of ours
LAST = "Certificate: "  # begins its last line, behind which are the candidate's own words
REBUILDS = "_kernelwright_reference"  # the function that has what makes weights
_FUNCTIONS = (
    "_kernelwright_built",
    "_kernelwright_checked",
    "_kernelwright_copied",
    "_kernelwright_set",
    REBUILDS,
)
_OURS = {"self", "torch", "Model", "AttributeError", "TypeError", "LookupError", "RuntimeError"}
SAID = 200  # characters of the reference's own words
LISTED = 8  # weights that are named


class Tensor(TypedDict):
    """One tensor of the inputs: the argument it is, or lies in, and where in that. ``free``: the
    name of each dimension that may have any size, None for others. ``order``: its dimensions, the
    one that varies slowest first, where that is another order, as in channels_last; else [].
    """

    argument: int
    path: list[str | int]
    dtype: str
    shape: list[int]
    free: list[str | None]
    order: list[int]


class Signature(TypedDict):
    """See worker_reference: what a call of the reference may name."""

    names: list[str]
    keywords: list[str]
    defaults: dict[str, Any]
    any: bool


class About(TypedDict):
    """What is known of a file. ``inputs``: of a call, in order; ``arguments``: how many a call has;
    ``init``: trees of what the constructor is given; ``tried``: sizes on which it is right, by the
    name of the dimension, and ``only``: names that may have no others; ``rebuilds``: whether the
    constructor of the ``reference`` (its text) makes the weights, if it can stand in the file, and
    ``takes``: whether it takes them by itself; ``made``: whether it has the reference's weights
    once it is constructed; ``loads``: what takes the reference's state_dict, "" for nothing;
    ``open``: whether it is to be found out yet which shapes it takes; ``quick``: a speedup.
    """

    task: str
    reference: str
    operators: list[str]
    inputs: list[Tensor]
    arguments: int
    forward: Signature
    init: list[Any]
    constructor: Signature
    weights: list[str]
    outputs: list[str]
    device: str
    machine: str
    tried: dict[str, list[int]]
    only: list[str]
    rebuilds: bool
    takes: bool
    made: bool
    loads: str
    open: bool
    version: str
    quick: dict[str, Any] | None


def written(source: str, about: About) -> str:
    """Returns the candidate's file with what was written round it before replaced."""
    body, loader = _apart(source)
    body = _without_guard(body)
    rebuilt = _rebuilt(about)
    body = _with_docstring(body, about, rebuilt=bool(rebuilt))
    return f"{body.rstrip()}\n\n\n{_guard(body, about, rebuilt)}{loader}"


def _rebuilt(about: About) -> str:
    """Returns the function that has what makes the reference's weights, "" where there is none."""
    if not about["rebuilds"] or not about["weights"]:
        return ""
    try:
        return rebuilding.constructor(about["reference"], REBUILDS) + "\n\n\n"
    except rebuilding.Unbuilt:
        return ""


def _apart(source: str) -> tuple[str, str]:
    """Returns a file, and what compiles its sources where that stands at its end."""
    body, mark, loader = source.rpartition(loaders.MARK)
    apart = mark and _parsed(body) is not None and _parsed(loader.partition("\n")[2]) is not None
    return (body, f"\n{mark}{loader}") if apart else (source, "")  # else it is within a literal


def _parsed(text: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(text.encode()).body
    except (SyntaxError, ValueError):
        return None


def _without_guard(source: str) -> str:
    """Takes out what was written here for the same file at another time."""
    body, mark, guard = source.rpartition(GUARD)
    found = _parsed(guard) if mark else None
    ours = [n for n in found or () if _is_ours(n)]
    if not ours:
        return source
    lines = _lines(guard)
    for n in ours:
        assert n.end_lineno is not None
        lines[n.lineno - 1 : n.end_lineno] = [""] * (n.end_lineno - n.lineno + 1)
    rest = "".join(lines).strip()
    return f"{body.rstrip()}\n\n\n{rest}\n" if rest else body


def _is_ours(n: ast.stmt) -> bool:
    """Whether a statement behind the mark was written here."""
    if isinstance(n, ast.FunctionDef):
        return n.name in _FUNCTIONS
    if isinstance(n, (ast.Assign, ast.If)):
        text = ast.unparse(n)
        names = {m.id for m in ast.walk(n) if isinstance(m, ast.Name)}
        return "ModelNew." in text and bool(names & {*_FUNCTIONS})
    return False


# The docstring.


def _with_docstring(source: str, about: About, *, rebuilt: bool) -> str:
    tree = ast.parse(source.encode())
    mark = "\ufeff" if source.startswith("\ufeff") else ""
    lines = [line.encode() for line in _lines(source.removeprefix(mark))]
    own = ast.get_docstring(tree)
    if own is not None:
        node = tree.body[0]
        assert node.end_lineno is not None
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :].lstrip(b" \t;")
        lines[node.lineno - 1 : node.end_lineno] = [before + after] if after.strip() else []
    apart = "\n" if own is None else ""
    if own is not None and WRITTEN in own:
        own = own.partition(f"\n{LAST}")[2].partition("\n\n")[2] or None
    at = _comments(lines)
    text = [line.decode() for line in lines]
    return mark + "".join([*text[:at], _docstring(about, own, rebuilt), apart, *text[at:]])


def _comments(lines: Sequence[bytes]) -> int:
    """The number of lines that must stay first: what starts an interpreter, and an encoding."""
    at = 0
    while at < min(2, len(lines)) and (lines[at][:2] == b"#!" or b"coding" in _comment(lines[at])):
        at += 1
    return at


def _comment(line: bytes) -> bytes:
    return line if line.lstrip().startswith(b"#") else b""


def _lines(text: str) -> list[str]:
    return io.StringIO(text, newline="").readlines()


def _docstring(about: About, own: str | None, rebuilt: bool) -> str:
    task, device = about["task"], about["device"]
    says = _said(about["reference"])
    operators = ", ".join(o.removeprefix("aten.") for o in about["operators"][:LISTED])
    first = says or f"What Model of {task}.py computes" + (f": {operators}." if operators else ".")
    where = "the CPU" if device == "cpu" else "a GPU, by CUDA"
    machine = f" ({about['machine']})" if about["machine"] else ""
    quick = about["quick"]
    speedup = "its certificate has it, with its interval"
    if quick:
        speedup = (
            f"measured quickly, before it was certified, {quick['value']:.2f}x "
            f"[{quick['low']:.2f}, {quick['high']:.2f}] {quick['against']}; its certificate has "
            "what was measured then"
        )
    parts = [
        f"{first}\n",
        f"{WRITTEN} {about['version']}. ModelNew stands for Model of {task}.py.\n",
        *(f"Takes {line}" for line in _takes(about)),
        f"Returns: {'; '.join(about['outputs']) or 'what Model returns'}",
        f"Weights: {_weights(about, rebuilt)}",
        f"Device: {where}; it was certified on {where}{machine}.",
        "Inference only: call it under torch.no_grad(). It computes no gradients.",
        f"Speedup: {speedup}.",
        f"{LAST}{task}.certificate.json",
    ]
    if own:
        parts += ["", own]
    text = "\n".join(parts)
    return f'"""{_escaped(text)}\n"""\n'


def _said(reference: str) -> str:
    """The first sentence of what the reference says of itself."""
    try:
        tree = ast.parse(reference.encode())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    model = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == rebuilding.MODEL]
    described: list[ast.Module | ast.ClassDef] = [tree, *model]
    for n in described:
        words = (ast.get_docstring(n) or "").strip().partition("\n\n")[0].split()
        if words:
            return " ".join(words)[:SAID]
    return ""


def _takes(about: About) -> list[str]:
    names = _arguments(about)
    told: list[str] = []
    for t in about["inputs"]:
        name = names[t["argument"]] + "".join(f"[{k!r}]" for k in t["path"])
        told.append(f"{name}: {t['dtype']} {_shape_text(_sizes(t))}")
    free = sorted({d for t in about["inputs"] for d in t["free"] if d is not None})
    others = []
    for d in free:
        tried = ", ".join(map(str, about["tried"][d]))
        others.append(f"{d} {tried}" if d in about["only"] else f"any {d} (tried: {tried})")
    told.append(f"other sizes: {'; '.join(others) or 'none'}")
    return told


def _weights(about: About, rebuilt: bool) -> str:
    """Says how it comes by weights, as far as that was checked."""
    names, loads = about["weights"], about["loads"]
    if not names:
        return "none"
    shown = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" * (len(names) > LISTED))
    shown += "" if loads else ", under ModelNew's own names or in its own form"
    if about["made"] and (rebuilt or not about["takes"]):
        made = "made as the reference makes them, under one seed the same"
    else:
        made = "not made as the reference makes them: load them before use"
    takes = (
        f"{loads} takes the reference's state_dict"
        if loads
        else "load_state_dict takes what ModelNew's own state_dict() gave, not the reference's"
    )
    return f"{shown}; {made}. {takes}."


def _sizes(t: Tensor) -> list[int | str]:
    return [n if name is None else name for n, name in zip(t["shape"], t["free"], strict=True)]


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _escaped(text: str) -> str:
    """Text within three quotes: what cannot be seen is written out."""
    safe = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in _slashed(text))
    return safe.replace('"""', '\\"\\"\\"')


def _slashed(text: str) -> str:
    return text.replace("\\", "\\\\")


# What checks a call.

_COPIES = '''def _kernelwright_copied(self, memo):
    """Copies all but the extensions that it holds, which a copy holds, too."""
    import copy, ctypes, types
    for m in self.modules():
        held = [v for v in vars(m).values() if isinstance(v, (types.ModuleType, ctypes.CDLL))]
        memo.update({id(v): v for v in held})
    new = memo[id(self)] = type(self).__new__(type(self))
    new.__dict__.update(copy.deepcopy(vars(self), memo))
    return new


if "__deepcopy__" not in vars(ModelNew):
    ModelNew.__deepcopy__ = _kernelwright_copied


'''


def _guard(source: str, about: About, rebuilt: str) -> str:
    return (
        GUARD
        + _COPIES * ("load_inline" in source or "ctypes" in source)
        + rebuilt
        + _built(about, rebuilt=bool(rebuilt), sets=_sets_forward(source))
        + _checked(about, sets=_sets_forward(source))
    )


def _sets_forward(source: str) -> bool:
    """Whether one model may get a forward that its class has not."""
    return any(
        (isinstance(n, ast.Attribute) and n.attr == "forward" and isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.Constant) and n.value == "forward")
        for n in ast.walk(ast.parse(source.encode()))
    )


_SET = """def _kernelwright_set(_kernel):
    \"\"\"Returns what calls the forward that the constructor has set, or the class's.\"\"\"
    def forward(self, *args):
        own = vars(self).get("_kernelwright_forward")
        return _kernel(self, *args) if own is None else own(*args)

    return forward


"""


def _arguments(about: About) -> list[str]:
    """The names of a call's arguments: the reference's, where all are names."""
    n, said = about["arguments"], about["forward"]
    return names_of(said, n) or [f"input{i}" for i in range(n)]


def names_of(said: Signature, count: int) -> list[str]:
    """Returns the names of what a call is given, none where it has not a name for each."""
    names = [n for n in said["names"] if n not in said["keywords"]][:count]
    return names if len(names) == count and all(map(is_name, names)) else []


def is_name(name: str) -> bool:
    """Whether a wrapper may call a parameter so."""
    fine = name.isidentifier() and not keyword.iskeyword(name)
    return fine and name[0] != "_" and name not in _OURS


def _left(said: Signature, given: int) -> dict[str, str]:
    """The parameters that nobody gave, with their defaults as text, where these can be written."""
    left: dict[str, str] = {}
    positional = [n for n in said["names"] if n not in said["keywords"]]
    for name in [*positional[given:], *said["keywords"]]:
        if not is_name(name) or name not in said["defaults"]:
            continue
        try:
            left[name] = literal(said["defaults"][name])
        except ValueError:
            continue
    return left


def literal(tree: Any) -> str:
    """Returns a tree without tensors as Python. Raises ValueError."""
    kind, v = next(iter(tree.items())) if isinstance(tree, dict) and len(tree) == 1 else ("", None)
    if kind == "value" and (v is None or isinstance(v, (bool, int, str))):
        return repr(v)
    if kind == "value" and isinstance(v, float) and math.isfinite(v):
        return repr(v)
    if kind == "dtype" and isinstance(v, str) and v.isidentifier():
        return f"torch.{v}"
    if kind in ("list", "tuple") and isinstance(v, list):
        inside = ", ".join(map(literal, v))
        if kind == "list":
            return f"[{inside}]"
        return f"({inside}{',' * (len(v) == 1)})"
    if kind == "dict" and isinstance(v, list):
        items = [f"{k!r}: {literal(x)}" for k, x in v if isinstance(k, (str, int))]
        if len(items) == len(v):
            return f"{{{', '.join(items)}}}"
    raise ValueError("no literal")


_COMPARE = '''
    def _compare(given):
        """Raises what differs from what was certified, where something does."""
        for name, value in _fixed.items():
            got = given[name]
            if isinstance(got, (list, tuple)) and isinstance(value, (list, tuple)):
                got, value = list(got), list(value)
            if not (got is value or isinstance(got == value, bool) and got == value):
                raise ValueError(
                    f"ModelNew was certified for {name} = {value!r} alone, not {got!r:.80}"
                )
'''


def _comparing(fixed: dict[str, str]) -> str:
    """Returns the function that compares arguments with those that were certified, and those."""
    listed = ", ".join(f"{n!r}: {v}" for n, v in fixed.items())
    return f"    _fixed = {{{listed}}}\n{_COMPARE}"


def _compared(names: Iterable[str], depth: int) -> str:
    return "    " * depth + f"_compare({{{', '.join(f'{n!r}: {n}' for n in names)}}})\n"


def _built(about: About, *, rebuilt: bool, sets: bool) -> str:
    """Returns what stands round the constructor, "" where there is nothing to say."""
    said, init = about["constructor"], about["init"]
    names = names_of(said, len(init))
    named = not said["any"] and len(names) == len(init)
    if not rebuilt and not sets and not (named and init):
        return ""
    fixed: dict[str, str] = {}
    left: dict[str, str] = {}
    taken, passed = "*args, **named", "*args, **named"
    if named:
        left = _left(said, len(init))
        order = [n for n in said["names"] if n in left and n not in said["keywords"]]
        alone = [n for n in said["keywords"] if n in left]
        listed = [*names, *(f"{n}={left[n]}" for n in order)]
        listed += ["*", *(f"{n}={left[n]}" for n in alone)] if alone else []
        taken, passed = ", ".join(listed), ", ".join(names)
        for name, tree in zip(names, init, strict=True):
            try:
                fixed[name] = literal(tree)
            except ValueError:
                continue
        fixed |= left
    out = "def _kernelwright_built(_construct):\n"
    out += (
        '    """Returns the constructor, for the arguments that the file was certified with."""\n'
    )
    out += "    import torch\n\n" + f"    _model = {REBUILDS}()\n" * rebuilt
    if fixed:
        out += _comparing(fixed)
    if rebuilt:
        out += _give(about)
    out += f"\n    def __init__(self{', ' if taken else ''}{taken}):\n"
    if fixed:
        out += _compared(fixed, 2)
    if rebuilt:
        out += (
            "        _gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []\n"
            "        with torch.random.fork_rng(_gpus):  # what comes draws what it drew\n"
            f"            _drawn = _model({passed}).state_dict()\n"
        )
    out += f"        _construct(self{', ' if passed else ''}{passed})\n"
    if rebuilt:
        out += "        _give(self, _drawn)\n"
    if sets:
        out += (
            '        if "forward" in vars(self):  # it is checked, too\n'
            '            self._kernelwright_forward = vars(self).pop("forward")\n'
        )
    out += "\n    return __init__\n\n\n"
    return out + "ModelNew.__init__ = _kernelwright_built(ModelNew.__init__)\n\n\n"


def _give(about: About) -> str:
    """Returns the function that gives a model the weights of another."""
    head = "\n    def _give(model, drawn):\n"
    if about["takes"]:
        return head + (
            f"        with torch.no_grad():\n            model.{about['loads']}(drawn)\n"
        )
    return head + (
        "        own = model.state_dict()\n"
        "        with torch.no_grad():\n"
        "            for name in own.keys() & drawn.keys():\n"
        "                own[name].copy_(drawn[name])\n"
    )


_REFUSE = '''
    def _refuse(model, given):
        """Raises what is wrong with a call, where something is."""
        sizes, tensors = {}, {}
        for name, (at, path, dtype, shape, order) in _takes.items():
            value = given[at]
            for step in path:
                try:
                    value = value[step]
                except (TypeError, LookupError):
                    raise TypeError(f"ModelNew takes a tensor {name}, and has none") from None
            if not isinstance(value, torch.Tensor):
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                kind = kind.removeprefix("builtins.")
                raise TypeError(f"{name} must be a torch.Tensor, is a {kind}")
            if value.dtype is not dtype:
                raise TypeError(f"{name} must be {dtype}, is {value.dtype}: certified for no other")
            if value.device.type != "DEVICE":
                raise ValueError(f"{name} must be on WHERE, is on {value.device}: move it there")
            CURRENTif value.layout is not torch.strided:
                raise ValueError(f"{name} must be dense, is {value.layout}: call .to_dense() first")
            if value.is_neg() or value.is_conj():
                raise ValueError(
                    f"{name} is a view that negates or conjugates: "
                    "call .resolve_neg().resolve_conj() first"
                )
            SHAPES
            if not value.numel():
                raise ValueError(f"{name} has no elements: its shape is {tuple(value.shape)}")
            if not (value.permute(order) if order else value).is_contiguous():
                wanted = f"lie in memory in the order {order} of its dimensions" if order else ""
                raise ValueError(
                    f"{name} must {wanted or 'be contiguous'}, has the strides {value.stride()}: "
                    + ("certified for no other" if order else "call .contiguous() first")
                )
            tensors[name] = value
        if _grad():
            for name, value in [*model.named_parameters(), *tensors.items()]:
                if value.requires_grad:
                    raise RuntimeError(
                        f"ModelNew computes no gradients, and {name} requires grad: "
                        "call it under torch.no_grad()"
                    )
'''
_SHAPES = """if len(shape) != value.dim() or any(
                n != (sizes.setdefault(size, n) if isinstance(size, str) else size)
                or size in _only and n not in _only[size]
                for n, size in zip(value.shape, shape)
            ):
                wanted = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
                raise ValueError(
                    f"{name} must have the shape ({wanted}), has {tuple(value.shape)}: "
                    "certified for no other"
                )"""


_DEVICE = "_current = getattr(torch._C, '_cuda_getDevice', torch.cuda.current_device)"
_CURRENT = """if value.get_device() != _current():
                raise ValueError(
                    f"{name} must be on the current GPU, is on {value.device}: "
                    f"call it under torch.cuda.device({value.get_device()})"
                )
            """
# A view may negate what it gives: the imaginary part of a conjugate.
_NEGATED = ("float16", "float32", "float64", "complex32", "complex64", "complex128")


def _usual(label: str, number: int, t: Tensor, about: About) -> str:
    """Returns what one tensor of a call is mostly like, as few and quick comparisons."""
    dtype, gpu = t["dtype"], about["device"] == "cuda"
    order = f".permute({tuple(t['order'])!r})" if t["order"] else ""
    said = [
        f"{label}.is_{about['device']}",
        *([f"{label}.get_device() == _current()"] if gpu else []),
        f"{label}.dtype is _dtype{number}",
        f"{label}.layout is _strided",
        f"{label}{order}.is_contiguous()",
        *([f"not {label}.is_neg()"] if dtype in _NEGATED else []),
        *([f"not {label}.is_conj()"] if dtype.startswith("complex") else []),
        *([] if about["open"] else [f"{label}.shape == _shape{number}"]),
    ]
    return "\n                and ".join(said)


def _checked(about: About, *, sets: bool) -> str:
    """Returns what stands round forward: what a call is mostly given costs a few comparisons."""
    names, said, on = _arguments(about), about["forward"], about["device"]
    left = _left(said, len(names)) if names == said["names"][: len(names)] else {}
    order = [n for n in said["names"] if n in left and n not in said["keywords"]]
    alone = [n for n in said["keywords"] if n in left]
    listed = ["self", *names, *(f"{n}={left[n]}" for n in order)]
    listed += ["*", *(f"{n}={left[n]}" for n in alone)] if alone else []
    takes, kinds, usual, only = "", "", ["not _grad()"], {}
    for i, t in enumerate(about["inputs"]):
        label = names[t["argument"]] + "".join(f"[{k!r}]" for k in t["path"])
        dtype, sizes = f"torch.{t['dtype']}", tuple(_sizes(t))
        takes += (
            f"        {label!r}: ({t['argument']}, {tuple(t['path'])!r}, {dtype}, {sizes!r}, "
            f"{tuple(t['order'])!r}),\n"
        )
        kinds += f"    _dtype{i}, _shape{i} = {dtype}, {tuple(t['shape'])!r}\n"
        usual.append(_usual(label, i, t, about))
        for n, size in zip(t["shape"], t["free"], strict=True):
            if size in about["only"]:
                only[size] = tuple(sorted({n, *about["tried"][size]}))
    usual += [f"{n} == {value}" for n, value in left.items()]
    refuse = _REFUSE.replace("DEVICE", on).replace("WHERE", "the CPU" if on == "cpu" else "a GPU")
    refuse = refuse.replace("CURRENT", _CURRENT if on == "cuda" else "").replace(
        "SHAPES", "pass" if about["open"] else _SHAPES
    )
    chain = "\n                and ".join(usual)
    given = f"{', '.join(names)}{',' * (len(names) == 1)}"
    return (
        "def _kernelwright_checked(_kernel):\n"
        '    """Returns forward, for what the file was certified with."""\n    import torch\n\n'
        "    _grad, _strided = torch.is_grad_enabled, torch.strided\n"
        + (f"    {_DEVICE}\n" if on == "cuda" else "")
        + f"    _takes = {{\n{takes}    }}\n"
        + (f"    _only = {only!r}\n" if not about["open"] else "")
        + f"{kinds}{refuse}"
        + (f"\n{_comparing(left)}" if left else "")
        + f"\n    def forward({', '.join(listed)}):\n"
        f"        try:\n            _usual = (\n                {chain}\n            )\n"
        "        except (AttributeError, TypeError, LookupError, RuntimeError):\n"
        "            _usual = False\n        if not _usual:\n"
        + (_compared(left, 3) if left else "")
        + f"            _refuse(self, ({given}))\n"
        f"        return _kernel(self{', ' if names else ''}{', '.join(names)})\n"
        "\n    return forward\n\n\n"
        + _SET * sets
        + "ModelNew.forward = _kernelwright_checked("
        + ("_kernelwright_set(ModelNew.forward)" if sets else "ModelNew.forward")
        + ")\n"
    )
