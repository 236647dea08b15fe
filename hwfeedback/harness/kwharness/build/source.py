"""What can be said of a reference's or candidate's text without running it.

The text is foreign and may be made to hurt whoever parses it: this module is for a sandboxed
worker. It answers with a dict for every text, and never raises. What it says of a candidate is a
hint, which spares waiting, and convicts nobody: the sandbox and the verdict do.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import io
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

from kwharness.base.constants import SHARED
from kwharness.base.verdicts import Read
from kwharness.build import forms, reports

MAX_BYTES = {"candidate": 1 << 20, "reference": SHARED.max_reference_bytes}


def parse(text: str, what: str) -> Read:
    """Reads a text. ``called`` of what is returned are the languages of which it imports the
    modules; problems are sentences of the form "line 3: ...".

    ``what`` is "reference" or "candidate". A text that is not Python has the hash "" and one
    problem.
    """
    read = Read("", forms.NONE)
    try:
        tree = _tree(text, MAX_BYTES[what])
        read.normalised_hash = _hash(tree)
        if what == "candidate":
            read.language, read.form = _language(tree)
            read.called = [f.kind for f in forms.FORMS if f.module and _imports(tree, f.module)]
            read.lazy = _builds_within(tree)
            # However it comes by it: whoever imports the file will see whether it is there.
            none = [(0, "the source defines no class ModelNew")]
            found = [] if "ModelNew" in text else none
        else:
            read.given = _given_function(tree)
            found = list(
                _missing(tree, {"Model": (ast.ClassDef,), "get_inputs": (ast.FunctionDef,)})
            )
        seen = dict.fromkeys(
            f"line {line}: {what}" if line else what for line, what in sorted(found)
        )
        read.problems = list(seen)[: reports.MAX_PROBLEMS]
    except SourceError as e:
        read.problems = [str(e)]
    except (RecursionError, MemoryError):
        read.problems = ["the source is nested too deeply"]
    return read


class SourceError(ValueError):
    """The text is no Python module. The message is one sentence, with the line if there is one."""


def normalised_hash(text: str, what: str = "reference") -> str:
    """Returns the hex SHA-256 of the AST without docstrings, comments, formatting and file names.

    Of a reference this is the task's fingerprint, which groups what the history has of it. It names
    no program: one can read its own text, so whatever is remembered goes by bytes. Raises
    SourceError.
    """
    return _hash(_tree(text, MAX_BYTES[what]))


def _tree(text: str, limit: int) -> ast.Module:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise SourceError("the source is not valid Unicode text") from e
    if len(data) > limit:
        raise SourceError(f"the source is {len(data)} bytes long, over the limit of {limit}")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SourceError(f"line {line}: the source holds a null byte")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, for one: the author's business
            other = _another_encoding(data)
            if not other:
                return ast.parse(data, filename="source.py")
    except SyntaxError as e:
        raise SourceError(f"line {e.lineno or 1}: not valid Python: {e.msg}") from e
    except ValueError as e:
        raise SourceError(f"not valid Python: {e}") from e
    except (RecursionError, MemoryError) as e:
        raise SourceError("the source is nested too deeply") from e
    raise SourceError(f"the source declares the encoding {other}: save it as UTF-8, and say so")


def _another_encoding(data: bytes) -> str:
    """Returns the encoding that a file declares, where Python would read another text by it than by
    UTF-8. Raises SyntaxError for one that there is not.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    plain = data.removeprefix(codecs.BOM_UTF8).decode()
    try:
        return "" if data.decode(encoding) == plain else encoding
    except (LookupError, ValueError):  # it is no text's, or not this one's
        return encoding


def _hash(tree: ast.Module) -> str:
    """Hashes the tree in order, with a stack of its own: the depth is the author's choice."""
    digest = hashlib.sha256()
    stack: list[Any] = [tree]
    end_node, end_list = object(), object()
    while stack:
        item = stack.pop()
        if isinstance(item, ast.AST):
            digest.update(f"({type(item).__name__}".encode())
            stack.append(end_node)
            for name in reversed(item._fields):
                if name in ("type_comment", "kind", "type_ignores"):
                    continue
                value = getattr(item, name, None)
                if name == "body" and isinstance(value, list):
                    value = _without_docstring(item, value)
                stack.append(value)
        elif isinstance(item, list):
            digest.update(b"[")
            stack.append(end_list)
            stack.extend(reversed(item))
        elif item is end_node or item is end_list:
            digest.update(b")" if item is end_node else b"]")
        else:
            digest.update(f"{type(item).__name__}:{item!r};".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _without_docstring(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return body
    first = body[0].value if body and isinstance(body[0], ast.Expr) else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return body[1:]
    return body


def _missing(tree: ast.Module, wanted: dict[str, tuple[type, ...]]) -> Iterator[tuple[int, str]]:
    """Yields a problem for each name that the module does not define or assign at its top level,
    ifs included.
    """
    defined: set[str] = set()
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update((a.asname or a.name).split(".")[0] for a in node.names)
        elif isinstance(node, ast.Assign):
            defined.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            stack.extend(ast.iter_child_nodes(node))
    for name, kinds in wanted.items():
        if name not in defined:
            word = "class" if ast.ClassDef in kinds else "function"
            yield 0, f"the source defines no {word} {name}"


def _given_function(tree: ast.Module) -> str:
    """Returns the first parameter of Model.forward that can be named in a call and is a function of
    the file if nobody gives another one; "" where there is none. Such references are "functional"
    ones: whatever does the work can be put into the place of that function.
    """
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    models = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    body = models[-1].body if models else []
    forwards = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    if not forwards:
        return ""
    args = forwards[-1].args
    at = len(args.posonlyargs) + len(args.args) - len(args.defaults)
    defaults: list[ast.expr | None] = [None] * at + list(args.defaults)
    named = list(zip(args.args, defaults[len(args.posonlyargs) :], strict=True))
    named += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    for parameter, default in named:
        if isinstance(default, ast.Name) and default.id in functions:
            return parameter.arg
    return ""


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Maps the names that imports bind to what they stand for. An exported file binds what it has
    of the loader by assignments.
    """
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                names[a.asname or a.name.split(".")[0]] = (
                    a.name if a.asname else a.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for a in node.names:
                names[a.asname or a.name] = f"{node.module}.{a.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            path = _dotted(node.value, names)
            if path.split(".")[0] == "kernelwright":
                names[node.targets[0].id] = path
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def _builds_within(tree: ast.Module) -> bool:
    """Whether a call that builds something seems to lie in a function, or to have another name."""
    aliases = _aliases(tree)
    top: set[int] = set()
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        top.add(id(node))
        stack.extend(ast.iter_child_nodes(node))
    called: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and forms.CALLS.fullmatch(_dotted(node.func, aliases)):
            called.add(id(node.func))
            if id(node) not in top:
                return True
    names = (n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(forms.CALLS.fullmatch(_dotted(n, aliases)) for n in names if id(n) not in called)


def _language(tree: ast.Module) -> tuple[str, str]:
    """Returns the language and the form (forms.KINDS, "none") that the text seems to use."""
    aliases = _aliases(tree)
    used = [f for f in forms.FORMS if f.module and _imports(tree, f.module)]
    language = used[0].kind if used else "cpp"
    for node in ast.walk(tree):
        form = forms.of_call(_dotted(node.func, aliases)) if isinstance(node, ast.Call) else None
        if form is not None and isinstance(node, ast.Call):
            language = form.language(node) or language
            used.append(form)
    return language, next((f.kind for f in forms.FORMS if f in used), forms.NONE)


def _imports(tree: ast.Module, module: str) -> bool:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(node.module or "")
    return any(m.split(".")[0] == module for m in found)
