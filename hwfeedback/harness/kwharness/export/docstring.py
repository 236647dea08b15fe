"""The docstring of a file that is handed out: what its user has to know before all else.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kwharness.export import file_facts, reference_weights, speedup_line, whole_loader
from kwharness.export.file_facts import About

WRITTEN = "Certified by kernelwright"  # begins the second part of a docstring of ours
LAST = "Certificate: "  # begins its last line, behind which are the candidate's own words
SAID = 200  # characters of the reference's own words
LISTED = 8  # weights that are named


def put(source: str, about: About, *, rebuilt: bool) -> str:
    tree = ast.parse(source.encode())
    mark = "\ufeff" if source.startswith("\ufeff") else ""
    lines = [line.encode() for line in file_facts.lines(source.removeprefix(mark))]
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
    speedup = speedup_line.line_to_verify(whole_loader.as_import("".join(text)))
    return mark + "".join([*text[:at], _docstring(about, own, rebuilt, speedup), apart, *text[at:]])


def _comments(lines: Sequence[bytes]) -> int:
    """The number of lines that must stay first: what starts an interpreter, and an encoding."""
    at = 0
    while at < min(2, len(lines)) and (lines[at][:2] == b"#!" or b"coding" in _comment(lines[at])):
        at += 1
    return at


def _comment(line: bytes) -> bytes:
    return line if line.lstrip().startswith(b"#") else b""


def _docstring(about: About, own: str | None, rebuilt: bool, speedup: str) -> str:
    task, device = about["task"], about["device"]
    says = _said(about["reference"])
    operators = ", ".join(o.removeprefix("aten.") for o in about["operators"][:LISTED])
    first = says or f"What Model of {task}.py computes" + (f": {operators}." if operators else ".")
    where = "the CPU" if device == "cpu" else "a GPU, by CUDA"
    machine = f" ({about['machine']})" if about["machine"] else ""
    parts = [
        f"{first}\n",
        f"{WRITTEN} {about['version']}. ModelNew stands for Model of {task}.py.\n",
        *(f"Takes {line}" for line in _takes(about)),
        f"Returns: {_returns(about)}",
        f"Weights: {_weights(about, rebuilt)}",
        f"Device: {where}; it was certified on {where}{machine}.",
        "Inference only: call it under torch.no_grad(). It computes no gradients.",
        speedup,
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
    model = [
        n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == reference_weights.MODEL
    ]
    described: list[ast.Module | ast.ClassDef] = [tree, *model]
    for n in described:
        words = (ast.get_docstring(n) or "").strip().partition("\n\n")[0].split()
        if words:
            return " ".join(words)[:SAID]
    return ""


def _takes(about: About) -> list[str]:
    names = file_facts.arguments(about)
    told: list[str] = []
    for t in about["inputs"]:
        name = names[t["argument"]] + "".join(f"[{k!r}]" for k in t["path"])
        told.append(f"{name}: {t['dtype']} {_shape_text(file_facts.sizes(t))}")
    others = []
    for d, own in sorted(_own(about).items()):
        tried = ", ".join(map(str, sorted({own, *about["tried"][d]})))
        others.append(f"{d} {tried}" if d in about["only"] else f"any {d} (tried: {tried})")
    told.append(f"other sizes: {'; '.join(others) or 'none'}")
    return told


def _returns(about: About) -> str:
    said = "; ".join(about["outputs"]) or "what Model returns"
    sizes = ", ".join(f"{d} is {n}" for d, n in sorted(_own(about).items()))
    return f"{said} where {sizes}" if sizes and about["outputs"] else said


def _own(about: About) -> dict[str, int]:
    """The sizes that the reference's own inputs have where others are right, too, by name."""
    inputs = about["inputs"]
    dims = (pair for t in inputs for pair in zip(t["free"], t["shape"], strict=True))
    return {d: n for d, n in dims if d is not None}


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


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _escaped(text: str) -> str:
    """Text within three quotes: what cannot be seen is written out."""
    safe = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in _slashed(text))
    return safe.replace('"""', '\\"\\"\\"')


def _slashed(text: str) -> str:
    return text.replace("\\", "\\\\")
