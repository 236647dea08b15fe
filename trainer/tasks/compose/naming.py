"""The names of operator kinds: one for every spelling of an operator.

``nn.LeakyReLU``, ``F.leaky_relu`` and ``Tensor.leaky_relu`` are one kind, ``leakyrelu``.
"""

from __future__ import annotations

# What is another spelling of a kind, beyond case and underscores. Both sides are squashed.
ALIASES = {
    "absolute": "abs",
    "negative": "neg",
    "subtract": "sub",
    "rsub": "sub",
    "multiply": "mul",
    "divide": "div",
    "truedivide": "div",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "clampmin": "clamp",
    "clampmax": "clamp",
    "hardtanh": "clamp",
    "swish": "silu",
    "expit": "sigmoid",
    "concatenate": "cat",
    "concat": "cat",
    "mm": "matmul",
    "bmm": "matmul",
    "mv": "matmul",
    "dot": "matmul",
    "inner": "matmul",
    "einsum": "matmul",
    "tensordot": "matmul",
    "addmm": "linear",
    "baddbmm": "linear",
    "frobeniusnorm": "norm",
    "vectornorm": "norm",
    "matrixnorm": "norm",
    "linalgnorm": "norm",
    "linalgvectornorm": "norm",
    "linalgmatrixnorm": "norm",
    "amax": "max",
    "amin": "min",
    "nanmean": "mean",
    "nansum": "sum",
    "moveaxis": "movedim",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "permute": "transpose",
    "t": "transpose",
    "mt": "transpose",
    "adjoint": "transpose",
    "flatten": "reshape",
    "unflatten": "reshape",
    "view": "reshape",
    "ravel": "reshape",
    "viewas": "reshape",
    "reshapeas": "reshape",
    "squeeze": "reshape",
    "unsqueeze": "reshape",
    "linalgmultidot": "matmul",
    "multidot": "matmul",
    "chainmatmul": "matmul",
    "linalgmatmul": "matmul",
    "linalgvecdot": "matmul",
    "vecdot": "matmul",
    "batchnorm1d": "batchnorm",
    "batchnorm2d": "batchnorm",
    "batchnorm3d": "batchnorm",
    "instancenorm1d": "instancenorm",
    "instancenorm2d": "instancenorm",
    "instancenorm3d": "instancenorm",
    "softmax2d": "softmax",
    "bce": "binarycrossentropy",
    "bcewithlogits": "binarycrossentropywithlogits",
    "gaussiannll": "gaussiannll",
    "multiheadattention": "multiheadattention",
    "scaleddotproductattention": "attention",
    "tripletmarginwithdistance": "tripletmargin",
    "upsample": "interpolate",
    "upsamplenearest2d": "interpolate",
    "upsamplebilinear2d": "interpolate",
    "upsamplenearest": "interpolate",
    "upsamplebilinear": "interpolate",
    "fliplr": "flip",
    "flipud": "flip",
    "multigammaln": "mvlgamma",
    "i0": "i0",
    "round": "round",
    "fix": "trunc",
    "floordivide": "floordiv",
    "feature": "feature",
    "powerof": "pow",
    "square": "pow",
    "floatpower": "pow",
    "greaterequal": "ge",
    "greater": "gt",
    "lessequal": "le",
    "less": "lt",
    "equal": "eq",
    "notequal": "ne",
    "logicaland": "logicaland",
    "repeatinterleave": "repeat",
    "tile": "repeat",
    "broadcastto": "expand",
    "expandas": "expand",
    "indexselect": "index",
    "selectscatter": "index",
    "takealongdim": "gather",
}
# Names in other modules of torch that mean another thing than torch's own.
PREFIXED = ("linalg", "fft", "special")


def squash(name: str) -> str:
    """Returns a spelling without what spellings differ in: case, underscores, a loss's suffix."""
    flat = name.rsplit(".", 1)[-1].lower().replace("_", "")
    return flat.removesuffix("loss") if flat != "loss" else flat


def kind_of(path: str) -> str:
    """Returns the kind of an operator by its dotted path or plain name."""
    parts = path.split(".")
    flat = squash(parts[-1])
    if flat in ALIASES:
        return ALIASES[flat]
    for prefix in PREFIXED:
        if prefix in parts[:-1] and f"{prefix}{flat}" in ALIASES:
            return ALIASES[f"{prefix}{flat}"]
        # torch.special_expit is torch.special.expit.
        if flat.startswith(prefix) and len(flat) > len(prefix):
            return kind_of(flat.removeprefix(prefix))
    return flat
