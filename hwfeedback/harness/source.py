"""What can be said of a reference's or candidate's text without running it.

The text is foreign and may be made to hurt whoever parses it: this module is for a sandboxed
worker. It answers with a dict for every text, and never raises. The policy here is triage: it
spares honest mistakes a build, and what it misses is stopped by the sandbox and the verdict.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

MAX_BYTES = {"candidate": 1 << 20, "reference": 4 << 20}
MAX_PROBLEMS = 20
BLOB = re.compile(r"[A-Za-z0-9+/=_-]{1024,}")

ALLOWED_MODULES = frozenset(
    [
        "__future__",
        "abc",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "kernelwright",
        "math",
        "numbers",
        "numpy",
        "operator",
        "string",
        "textwrap",
        "torch",
        "triton",
        "typing",
        "typing_extensions",
        "warnings",
    ]
)
FORBIDDEN_CALLS = frozenset(
    ["__import__", "breakpoint", "compile", "eval", "exec", "exit", "input", "open", "quit"]
)
FORBIDDEN_ATTRIBUTES = frozenset(
    [
        "__bases__",
        "__builtins__",
        "__closure__",
        "__code__",
        "__globals__",
        "__loader__",
        "__mro__",
        "__reduce__",
        "__spec__",
        "__subclasses__",
        "f_back",
        "f_builtins",
        "f_globals",
        "f_locals",
        "gi_frame",
        "tb_frame",
    ]
)
# Modules that others import, so that they can be reached through them.
SYSTEM_MODULES = frozenset(
    [
        "builtins",
        "ctypes",
        "gc",
        "importlib",
        "inspect",
        "mmap",
        "multiprocessing",
        "os",
        "pickle",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "threading",
    ]
)
# Dotted names that a candidate must not use, and what to say of them.
FORBIDDEN_PATHS = {
    "torch.compile": "uses torch.compile, which a candidate is measured against",
    "torch.jit": "uses torch.jit, which a candidate is measured against",
    "torch.export": "uses torch.export",
    "torch.fx": "uses torch.fx",
    "torch._dynamo": "uses torch._dynamo, which a candidate is measured against",
    "torch._inductor": "uses torch._inductor, which a candidate is measured against",
    "torch.distributed": "starts processes",
    "torch.multiprocessing": "starts processes",
    "torch.hub": "downloads code",
    "torch.load": "reads files",
    "torch.save": "writes files",
    "torch.package": "reads files",
    "torch.serialization": "reads files",
    "torch.ops.load_library": "loads code from files",
    "torch.classes.load_library": "loads code from files",
    "torch.utils.cpp_extension.load": "loads code from files: use load_inline",
    "numpy.load": "reads files",
    "numpy.save": "writes files",
    "numpy.ctypeslib": "loads code from files",
    "numpy.fromfile": "reads files",
    "numpy.memmap": "reads files",
    "numpy.f2py": "starts processes",
}


def parse(text: str, what: str) -> dict[str, Any]:
    """Returns ``normalised_hash``, ``program_hash`` (the same, but for texts of several lines, such
    as the sources of kernels), ``language``, ``form``, ``triton`` (whether it is imported) and
    ``problems``, sentences of the form "line 3: ...".

    ``what`` is "reference" or "candidate". A text that is not Python has the hash "" and one
    problem.
    """
    result: dict[str, Any] = {"normalised_hash": "", "language": "", "form": "none", "problems": []}
    result |= {"triton": False, "program_hash": ""}
    try:
        tree = _tree(text, MAX_BYTES[what])
        result["normalised_hash"] = _hash(tree)
        result["program_hash"] = _hash(tree, texts=False)
        if what == "candidate":
            result["language"], result["form"] = _language(tree)
            result["triton"] = _imports_triton(tree)
            found: Iterable[tuple[int, str]] = _triage(tree)
        else:
            found = _missing(tree, {"Model": (ast.ClassDef,), "get_inputs": (ast.FunctionDef,)})
        seen = dict.fromkeys(
            f"line {line}: {what}" if line else what for line, what in sorted(found)
        )
        result["problems"] = list(seen)[:MAX_PROBLEMS]
    except SourceError as e:
        result["problems"] = [str(e)]
    except (RecursionError, MemoryError):
        result["problems"] = ["the source is nested too deeply"]
    return result


class SourceError(ValueError):
    """The text is no Python module. The message is one sentence, with the line if there is one."""


def normalised_hash(text: str, what: str = "reference") -> str:
    """Returns the hex SHA-256 of what the text means: the AST without docstrings, comments,
    formatting and file names.

    Of a reference this is the task's fingerprint. Raises SourceError.
    """
    return _hash(_tree(text, MAX_BYTES[what]))


def _tree(text: str, limit: int) -> ast.Module:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as e:
        raise SourceError("the source is not valid Unicode text") from e
    if size > limit:
        raise SourceError(f"the source is {size} bytes long, over the limit of {limit}")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SourceError(f"line {line}: the source holds a null byte")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, for one: the author's business
            return ast.parse(text.replace("\r\n", "\n"), filename="source.py")
    except SyntaxError as e:
        raise SourceError(f"line {e.lineno or 1}: not valid Python: {e.msg}") from e
    except ValueError as e:
        raise SourceError(f"not valid Python: {e}") from e
    except (RecursionError, MemoryError) as e:
        raise SourceError("the source is nested too deeply") from e


def _hash(tree: ast.Module, texts: bool = True) -> str:
    """Hashes the tree in order, with a stack of its own: the depth is the author's choice. Without
    ``texts``, those of several lines are all the same.
    """
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
        elif not texts and isinstance(item, str) and "\n" in item:
            digest.update(b"text;")
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


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Maps the names that imports bind to what they stand for."""
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
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def _forbidden(path: str) -> str:
    for prefix, what in FORBIDDEN_PATHS.items():
        if path == prefix or path.startswith(prefix + "."):
            return what
    through, *parts = path.split(".")
    if through in ALLOWED_MODULES:
        for part in parts:
            if part in SYSTEM_MODULES:
                return f"reaches {part} through {through}"
    return ""


def _triage(tree: ast.Module) -> list[tuple[int, str]]:
    found = list(_missing(tree, {"ModelNew": (ast.ClassDef,)}))
    aliases = _aliases(tree)
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for a in node.names:
                found += _import_problem(line, a.name, "")
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append(
                    (line, "imports from a package of its own, but a candidate is one file")
                )
            for a in node.names if not node.level else ():
                found += _import_problem(line, node.module or "", a.name)
        elif isinstance(node, ast.Name):
            if (
                node.id in FORBIDDEN_CALLS and node.id not in defined and node.id not in aliases
            ) or node.id in ("__builtins__", "__loader__", "__spec__"):
                found.append((line, f"uses {node.id}, which a candidate may not"))
            elif node.id in aliases and (what := _forbidden(aliases[node.id])):
                found.append((line, what))
        elif isinstance(node, ast.Attribute):
            if node.attr in FORBIDDEN_ATTRIBUTES:
                found.append((line, f"reaches for {node.attr}, which a candidate may not"))
            elif what := _forbidden(_dotted(node, aliases)):
                found.append((line, what))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bytes) and len(node.value) >= 1024:
                found.append((line, "holds a binary blob"))
            elif isinstance(node.value, str) and BLOB.search(node.value):
                found.append((line, "holds what looks like an encoded binary blob"))
    return found


def _import_problem(line: int, module: str, name: str) -> list[tuple[int, str]]:
    if module.split(".")[0] not in ALLOWED_MODULES:
        return [
            (line, f"imports {module}, which is not on the list of modules a candidate may import")
        ]
    what = _forbidden(module) or (_forbidden(f"{module}.{name}") if name else "")
    if what:
        return [(line, what)]
    if name == "*":
        return [(line, f"imports everything from {module}: name what is needed")]
    return []


def _language(tree: ast.Module) -> tuple[str, str]:
    """Returns the language and the form ("native", "load_inline", "triton" or "none") that the text
    seems to use.
    """
    aliases = _aliases(tree)
    language, form = ("triton", "triton") if _imports_triton(tree) else ("cpp", "none")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        path = _dotted(node.func, aliases)
        given = {k.arg: k.value for k in node.keywords}
        if path == "kernelwright.native":
            form = "native"
            wanted = given.get("language", node.args[1] if len(node.args) > 1 else None)
            if isinstance(wanted, ast.Constant) and wanted.value == "cuda":
                language = "cuda"
        elif path.endswith("cpp_extension.load_inline"):
            form = form if form == "native" else "load_inline"
            sources = given.get("cuda_sources")
            if sources is not None and not (
                isinstance(sources, (ast.List, ast.Constant)) and _empty(sources)
            ):
                language = "cuda"
    return language, form


def _imports_triton(tree: ast.Module) -> bool:
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.append(node.module or "")
    return any(m.split(".")[0] == "triton" for m in modules)


def _empty(node: ast.List | ast.Constant) -> bool:
    return not (node.elts if isinstance(node, ast.List) else node.value)
