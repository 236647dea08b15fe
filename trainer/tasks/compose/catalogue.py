"""The operator catalogue: what the installed torch has, and how it is called.

Operators come from ``torch.nn``'s modules and from the functions that
``torch.overrides.get_testing_overrides`` lists with their signatures. Each is run: an entry says on
which ranks it works, from which inputs, and what it comes down to in core ATen. What is left out is
counted by reason. Probing runs foreign code of the installed libraries only, in child processes:
one that dies or hangs costs its own entry.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch._decomp
from torch.fx.experimental.proxy_tensor import make_fx

from crawling import outcomes
from naming import kind_of
from rules import NoFit, rule_for
from step import AGAIN, ROLES_OF, X_NAMES, Step, draw_step, forward_names, roles_of, seeded

# Small tensors, by rank, on which an operator is tried.
SHAPES = {2: (8, 32), 3: (4, 8, 32), 4: (2, 16, 12, 12), 5: (2, 8, 6, 6, 6)}
TRIES = 6  # draws of parameters for a rank

# Kinds that would take the batch for something else on a smaller rank.
LEAST_RANK = {"attention": 3, "multiheadattention": 3, "transformerencoderlayer": 3, "cdist": 3}
# What an operator needs of its input for its values to be numbers.
DOMAINS: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "any": lambda s: torch.randn(s),
    "positive": lambda s: torch.rand(s) + 0.1,
    "unit": lambda s: torch.rand(s) * 0.9 + 0.05,
    "above_one": lambda s: torch.rand(s) + 1.1,
}
NAMESPACES = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.functional")
# Parts of a name that say that something is not for dense floating tensors, or is no operator.
FOREIGN = tuple(
    """
    quantize sparse cudnn mkldnn miopen fbgemm nested backward _jvp copy fake_
    choose_qparams ctc rnn lstm gru svd eig cholesky lobpcg pca_lowrank geqrf ormqr orgqr
    lu_ triangular_solve qr inv solve det lstsq householder ldl window stft istft complex
    polar feature_ embedding_renorm fused_ batch_norm_ native_ cond expm rank matrix_power
    matrix_exp convolution asarray rand like sym_ unsafe grid_sampl affine_grid with_indices
    fractional nan dsmm conv vdot frexp histc frobenius histogram rrelu vander gradient
    """.split()  # noqa: SIM905
)
# Modules that hold others, or are no operators.
CONTAINERS = set(
    """
    Module Sequential ModuleList ModuleDict ParameterList ParameterDict Transformer
    TransformerEncoder TransformerDecoder TransformerDecoderLayer Container
    FractionalMaxPool2d FractionalMaxPool3d CrossMapLRN2d SyncBatchNorm RReLU
    AdaptiveLogSoftmaxWithLoss Identity
    """.split()  # noqa: SIM905
)
SKIPPED = {"out", "dtype", "device", "generator", "layout", "inplace", "size_average", "reduce"}


def _path(f: Any) -> str:
    """Returns where a function is found by its name, "" where it is not."""
    name = getattr(f, "__name__", "")
    for space in NAMESPACES:
        if getattr(sys.modules.get(space), name, None) is f:
            return f"{space}.{name}"
    return ""


def candidates() -> Iterator[dict[str, Any]]:
    """Yields all that may be an operator, with its signature, or with why it is left out."""
    for name in sorted(torch.nn.modules.__all__):
        cls = getattr(torch.nn, name)
        entry = {"path": f"torch.nn.{name}", "form": "module", "kind": kind_of(name)}
        if name in CONTAINERS or name.startswith("Lazy"):
            yield entry | {"reason": "holds other modules, or does nothing"}
            continue
        try:
            yield (
                entry | {"parameters": _parameters(inspect.signature(cls.__init__))} | _tensors(cls)
            )
        except (ValueError, TypeError):
            yield entry | {"reason": "has no signature"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = torch.overrides.get_testing_overrides()
    seen = set()
    for f, dummy in listed.items():
        path = _path(f)
        if not path or path in seen:
            continue
        seen.add(path)
        name = path.rsplit(".", 1)[1]
        entry = {"path": path, "form": "function", "kind": kind_of(path)}
        if name.startswith("_") or name.endswith("_"):
            yield entry | {"reason": "is private or works in place"}
        elif any(part in name for part in FOREIGN):
            yield entry | {"reason": "is not for dense floating tensors, or no kernel of its own"}
        else:
            yield entry | _function(inspect.signature(dummy))


def _parameters(signature: inspect.Signature) -> list[dict[str, Any]]:
    return [
        {"name": n, "needed": p.default is p.empty}
        for n, p in signature.parameters.items()
        if n != "self" and n not in SKIPPED and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def _tensors(cls: type) -> dict[str, Any]:
    names = forward_names(cls)
    return (
        {
            "tensors": [n for n in names[1:] if n not in AGAIN],
            "again": [n for n in names[1:] if n in AGAIN],
            "listed": False,
        }
        if names
        else {"reason": "takes no tensor"}
    )


def _function(signature: inspect.Signature) -> dict[str, Any]:
    """Returns which parameters of a function are tensors: the first, and those without a rule."""
    parameters = _parameters(signature)
    if not parameters:
        return {"reason": "takes no tensor"}
    first, rest = parameters[0], parameters[1:]
    listed = first["name"] in ("tensors", "seq")
    if not listed and first["name"] not in X_NAMES:
        return {"reason": f"its first parameter is {first['name']}"}
    tensors = [
        p["name"]
        for p in rest
        if p["needed"] and (p["name"] in ROLES_OF or rule_for("", p["name"]) is None)
    ]
    leading = [p["name"] for p in itertools.takewhile(lambda p: p["name"] in tensors, rest)]
    if listed:
        tensors, leading = ["second"], []
    return {
        "parameters": [p for p in rest if p["name"] not in tensors],
        "tensors": tensors,
        "again": [],
        "listed": listed,
        "leading": leading,
    }


def probe(entry: dict[str, Any]) -> dict[str, Any]:
    """Runs an operator on every rank. Returns the entry with what works, or with a reason."""
    if "reason" in entry:
        return entry
    if len(entry["tensors"]) > 2:
        return entry | {"reason": "takes more than three tensors"}
    found: dict[str, Any] = {}
    why: Counter[str] = Counter()
    for rank in SHAPES:
        if rank < least_rank(entry):
            continue
        for roles in _roles(entry["kind"], entry["tensors"]):
            domain, first, reason = _works(entry, roles, rank, found)
            if not reason:
                found = {
                    "roles": roles,
                    "domain": domain,
                    "first": first,
                    "ranks": [*found.get("ranks", []), rank],
                }
                break
            why[reason] += 1
        if found and rank not in found["ranks"] and rank > found["ranks"][-1] + 1:
            break
    if not found:
        return entry | {"reason": why.most_common(1)[0][0] if why else "fits no tensor"}
    whole = entry | found
    primitives = _primitives(whole)
    if any(p.startswith(("rand", "bernoulli", "uniform", "normal")) for p in primitives):
        return entry | {"reason": "is random"}
    return whole | {"primitives": primitives, "family": family(primitives)}


def least_rank(entry: dict[str, Any]) -> int:
    """Returns from which rank on the first dimension is a batch to an operator."""
    ends = {"1d": 3, "2d": 4, "3d": 5}
    return LEAST_RANK.get(entry["kind"], ends.get(entry["path"][-2:], 0))


def _roles(kind: str, tensors: list[str]) -> Iterator[dict[str, str]]:
    """Yields what the further tensors of an operator may be."""
    if not tensors:
        yield {}
        return
    name, rest = tensors[0], tensors[1:]
    for role in roles_of(kind, name):
        for others in _roles(kind, rest):
            yield {name: role} | others


def _works(
    entry: dict[str, Any], roles: dict[str, str], rank: int, found: dict[str, Any]
) -> tuple[str, bool, str]:
    """Returns from which inputs an operator works on a rank, whether its result is the first of
    several, and why it does not.
    """
    if found and found["roles"] != roles:
        return "", False, "other ranks take other tensors"
    worst = "fits no tensor"
    for domain in [found["domain"]] if found else DOMAINS:
        for attempt in range(TRIES):
            rng = random.Random(f"{entry['path']} {rank} {attempt}")
            try:
                step = draw_step(entry | {"roles": roles, "first": False}, SHAPES[rank], rng, 24)
                first, reason = _once(step, rank, domain)
            except NoFit as e:
                reason, first = str(e), False
            except Exception:
                reason, first = "raises on every shape that was tried", False
            if not reason:
                return domain, first, ""
            worst = reason
        if worst != "is not finite":
            break
    return "", False, worst


def _once(step: Step, rank: int, domain: str) -> tuple[bool, str]:
    """Runs a step three times on two inputs. Returns whether several results come, and a reason."""
    seeded(1)
    x, y = DOMAINS[domain](SHAPES[rank]), DOMAINS[domain](SHAPES[rank])
    bound = step.bind(torch.float32, "cpu")
    extra = {n: t.make(x, torch.float32) for n, t in step.tensors.items()}
    keep = x.clone()
    results: list[Any] = []
    with torch.no_grad():
        for given in (x, x, y):
            seeded(len(results))
            out = step.run(given, extra, bound)
            step.first = isinstance(out, tuple | list)
            results.append(out[0] if isinstance(out, tuple | list) else out)
    a, b, c = results
    return step.first, _fault(a, b, c, x, keep) or _shapeless(step, x)


def _shapeless(step: Step, x: torch.Tensor) -> str:
    """Returns why the shape of a step's result is not known before it is run, or ""."""
    try:
        empty = torch.empty_like(x, device="meta")
        extra = {n: t.make(empty, torch.float32) for n, t in step.tensors.items()}
        with torch.no_grad():
            step.run(empty, extra, step.bind(torch.float32, "meta"))
    except Exception:
        return "has a shape that depends on values"
    return ""


def _fault(a: Any, b: Any, c: Any, x: torch.Tensor, keep: torch.Tensor) -> str:
    fault = result_fault(a, b, c, x)
    return fault if torch.equal(x, keep) else "writes into its input"


def result_fault(a: Any, b: Any, c: Any, x: torch.Tensor) -> str:
    """Returns what is wrong with results: two on x, and one on another input; "" for nothing."""
    if not isinstance(a, torch.Tensor):
        return "its result is no tensor"
    if not a.is_floating_point():
        return "its result is not floating"
    if a.dtype != x.dtype:
        return "changes the dtype"
    if not bool(torch.isfinite(a).all()):
        return "is not finite"
    if a.shape != b.shape or not torch.equal(a, b):
        return "is random"
    if a.shape == c.shape and torch.equal(a, c):
        return "does not depend on its input"
    if a.shape == x.shape and torch.equal(a, x):
        return "changes nothing"
    return ""


@cache
def _table() -> dict[Any, Any]:
    return torch._decomp.core_aten_decompositions()


def _primitives(entry: dict[str, Any]) -> list[str]:
    """Returns what an operator comes down to in core ATen, sorted; empty where that fails."""
    rank = entry["ranks"][0]
    for attempt in range(TRIES):
        try:
            rng = random.Random(f"{entry['path']} {rank} {attempt}")
            step = draw_step(entry, SHAPES[rank], rng, 24)
            x = DOMAINS[entry["domain"]](SHAPES[rank])
            bound = step.bind(torch.float32, "cpu")
            extra = {n: t.make(x, torch.float32) for n, t in step.tensors.items()}
            return _traced(partial(step.run, extra=extra, bound=bound), x)
        except Exception:
            continue
    return []


def _traced(forward: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[str]:
    with torch.no_grad():
        graph = make_fx(forward, decomposition_table=_table())(x).graph
    called = [n.target for n in graph.nodes if n.op == "call_function"]
    return sorted({f.overloadpacket.__name__ for f in called if hasattr(f, "overloadpacket")})


PRODUCTS = set(
    """
    mm bmm addmm baddbmm convolution _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_attention_math dot mv addmv einsum
    """.split()  # noqa: SIM905
)
ROWS = set(
    """
    sum mean amax amin max min var var_mean cumsum cumprod argmax _softmax _log_softmax
    native_layer_norm native_group_norm prod logcumsumexp _native_batch_norm_legit
    native_batch_norm avg_pool2d avg_pool3d avg_pool1d _adaptive_avg_pool2d
    _adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d
    adaptive_max_pool3d any all median sort topk kthvalue cummax cummin std mode
    _cdist_forward _pdist_forward aminmax _fused_rms_norm std_mean norm linalg_vector_norm
    adaptive_avg_pool1d fractional_max_pool2d logsumexp max_pool2d trace histc
    _adaptive_avg_pool1d _embedding_bag mse_loss nll_loss_forward nll_loss2d_forward
    """.split()  # noqa: SIM905
)
SHAPING = set(
    """
    view permute expand squeeze unsqueeze slice select clone cat split_with_sizes as_strided
    diagonal constant_pad_nd flip roll repeat reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad2d alias replication_pad3d replication_pad1d im2col
    col2im unfold index detach arange full _unsafe_view lift_fresh_copy pixel_shuffle
    pixel_unshuffle _to_copy empty split stack transpose t upsample_nearest2d
    channel_shuffle _unsafe_index tril triu index_select embedding scalar_tensor where_self
    """.split()  # noqa: SIM905
)


def family(primitives: list[str]) -> str:
    """Returns what an operator mostly is: "product", "row", "pointwise" or "shape"."""
    names = set(primitives)
    if names & PRODUCTS:
        return "product"
    if names & ROWS:
        return "row"
    return "pointwise" if names - SHAPING else "shape"


def crawl(told: Callable[[int, int], None], journal: str = "") -> dict[str, Any]:
    """Returns the catalogue. ``told`` hears how many of how many were tried. What was found is in
    the file ``journal`` until it is known: a crawl that was killed goes on there.
    """
    torch.set_num_threads(1)
    _traced(torch.relu, torch.ones(2))  # what that imports is imported once, before any child
    every = list(candidates())
    found = outcomes(every, probe, told, journal, len(os.sched_getaffinity(0)))
    return {
        "torch": torch.__version__,
        "operators": [e for e in found if "reason" not in e],
        "left_out": dict(Counter(e["reason"] for e in found if "reason" in e).most_common()),
        "left": {e["path"]: e["reason"] for e in found if "reason" in e},
        "tried": len(every),
    }
