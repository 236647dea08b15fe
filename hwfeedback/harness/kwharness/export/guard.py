"""What checks each call of a file that is handed out for what it is right for, and its constructor.

Names in ``About`` are foreign, and become literals here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from kwharness.export import file_facts
from kwharness.export.file_facts import REBUILDS, About

GUARD = "# What this file is right for, checked before each call. Written by kernelwright.\n"
FUNCTIONS = (
    "_kernelwright_built",
    "_kernelwright_checked",
    "_kernelwright_copied",
    "_kernelwright_set",
    REBUILDS,
)

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


def text(source: str, about: About, rebuilt: str) -> str:
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


def _left(said: file_facts.Named, given: int) -> dict[str, str]:
    """The parameters that nobody gave, with their defaults as text, where these can be written."""
    left: dict[str, str] = {}
    positional = [n for n in said["names"] if n not in said["keywords"]]
    for name in [*positional[given:], *said["keywords"]]:
        if not file_facts.is_name(name) or name not in said["defaults"]:
            continue
        try:
            left[name] = file_facts.literal(said["defaults"][name])
        except ValueError:
            continue
    return left


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
    names = file_facts.names_of(said, len(init))
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
                fixed[name] = file_facts.literal(tree)
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
    out += '\n    __init__.__qualname__ = "ModelNew.__init__"\n    return __init__\n\n\n'
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


def _usual(label: str, number: int, t: file_facts.Tensor, about: About) -> str:
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
    names, said, on = file_facts.arguments(about), about["forward"], about["device"]
    left = _left(said, len(names)) if names == said["names"][: len(names)] else {}
    order = [n for n in said["names"] if n in left and n not in said["keywords"]]
    alone = [n for n in said["keywords"] if n in left]
    listed = ["self", *names, *(f"{n}={left[n]}" for n in order)]
    listed += ["*", *(f"{n}={left[n]}" for n in alone)] if alone else []
    takes, kinds, usual, only = "", "", ["not _grad()"], {}
    for i, t in enumerate(about["inputs"]):
        label = names[t["argument"]] + "".join(f"[{k!r}]" for k in t["path"])
        dtype, sizes = f"torch.{t['dtype']}", tuple(file_facts.sizes(t))
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
        '\n    forward.__qualname__ = "ModelNew.forward"\n    return forward\n\n\n'
        + _SET * sets
        + "ModelNew.forward = _kernelwright_checked("
        + ("_kernelwright_set(ModelNew.forward)" if sets else "ModelNew.forward")
        + ")\n"
    )
