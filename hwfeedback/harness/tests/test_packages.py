"""The packages of the harness: imports run one way, as each docstring says, and no name of ours
hides another one.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import graphlib
import importlib.machinery
import importlib.metadata
import pathlib
import re
import subprocess
import sys

import pytest

from kwharness.base import paths

ROOT = pathlib.Path(paths.ROOT)
OURS = ROOT / "kwharness"
MODULES = {
    ".".join(f.relative_to(ROOT).with_suffix("").parts): f
    for f in sorted(OURS.rglob("*.py"))
    if f.name != "__init__.py"
}
PACKAGES = {f.parent.name: f for f in sorted(OURS.glob("*/__init__.py"))}
SIDES = ("referee", "worker", "both")


def imported(path: pathlib.Path) -> set[str]:
    """Returns the modules that a file imports anywhere: at its top, in functions, for types."""
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}:{node.lineno}: a relative import"
            whole = {f"{node.module}.{a.name}" for a in node.names}
            package = node.module.removeprefix("kwharness.") in PACKAGES
            assert whole <= set(MODULES) or not package, f"{path}:{node.lineno}: there is none"
            found |= whole & set(MODULES) or {node.module}
        else:
            left += ast.iter_child_nodes(node)
    return found


IMPORTS = {name: imported(path) for name, path in MODULES.items()}


def docstring(package: str) -> str:
    tree = ast.parse(PACKAGES[package].read_text())
    assert len(tree.body) == 1, f"{package}/__init__.py is more than a docstring"
    return ast.get_docstring(tree) or ""


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Returns by package which packages import it."""
    by: dict[str, set[str]] = {p: set() for p in PACKAGES}
    for name, modules in IMPORTS.items():
        own = name.split(".")[1]
        for m in modules:
            if m.startswith("kwharness.") and m.split(".")[1] != own:
                by[m.split(".")[1]].add(own)
    return by


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_imported_by_whom_its_docstring_names(package: str) -> None:
    text = docstring(package)
    side = re.search(r"^Side: (\w+)\.$", text, re.M)
    assert side and side[1] in SIDES
    names = re.search(r"^Imported by: ([^.]+)\.\Z", text, re.M)
    assert names, "the last line says who imports it"
    said = set(re.split(r",\s+", names[1])) - {"nobody"}
    assert said == arrows()[package]


def test_packages_import_each_other_one_way() -> None:
    list(graphlib.TopologicalSorter(arrows()).static_order())  # raises for a circle


def test_modules_import_each_other_one_way() -> None:
    graph = {name: IMPORTS[name] & set(MODULES) for name in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_foreign_code_runs_beside_no_module_of_the_referees() -> None:
    """A worker may come to know how it is judged, and no secret: those are in another process. But
    what only the referee runs has no business there.
    """
    below: set[str] = set()
    left = [m for m in MODULES if m.startswith("kwharness.workers.")]
    while left:
        name = left.pop()
        if name not in below:
            below.add(name)
            left += [m for m in IMPORTS[name] if m in MODULES]
    assert not [m for m in below if m.split(".")[1] in ("referee", "verify")]


def test_only_what_is_installed_is_imported_beside_ours() -> None:
    """No module is still imported by the name that it had in one folder with all others."""
    known = {"kernelwright", "kwharness", "torch", "numpy", "triton", *sys.stdlib_module_names}
    for name, modules in IMPORTS.items():
        assert {m.split(".")[0] for m in modules} <= known, name


def test_the_candidates_loader_imports_nothing_of_ours() -> None:
    found = imported(ROOT / "kernelwright.py")
    assert not [m for m in found if m.startswith(("kwharness", "kernelwright"))]


def test_no_name_hides_another() -> None:
    """With our folder first on sys.path every other name leads where it leads without it."""
    installed = set(importlib.metadata.packages_distributions())
    others = {"cuda", "cutlass", "profiling", "triton", "triton_kernels"}  # NVIDIA's, and PEP 799
    for name in installed | others | set(sys.stdlib_module_names):
        spec = importlib.machinery.PathFinder.find_spec(name, [str(ROOT)])
        assert spec is None or spec.loader is None, f"{name} is {spec and spec.origin}"
    there = importlib.machinery.PathFinder.find_spec
    assert all(there(name, [str(ROOT)]) for name in ("kernelwright", "kwharness"))


def test_all_of_it_adds_two_names() -> None:
    """In a new interpreter, where nothing was imported before."""
    script = (
        "import importlib, os, sys\n"
        "root, *names = sys.argv[1:]\n"
        "sys.path.insert(0, root)\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        "files = {n: getattr(m, '__file__', None) or '' for n, m in sys.modules.items()}\n"
        "print(*sorted(n for n, f in files.items() if f.startswith(root) and '.' not in n))\n"
    )
    command = [sys.executable, "-I", "-B", "-c", script, str(ROOT), *MODULES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "kernelwright kwharness\n", done.stderr


def level(package: str) -> tuple[int, str]:
    """Returns what puts packages into the order in which they import each other."""
    return max((level(p)[0] + 1 for p in arrows()[package]), default=0), package


def table() -> str:
    """Returns the table of docs/code-map.md."""
    rows = ["| package | what it is for | side | imported by |", "|---|---|---|---|"]
    for package in sorted(PACKAGES, key=level):
        text = docstring(package)
        side = re.search(r"^Side: (\w+)", text, re.M)
        by = sorted(arrows()[package], key=level)
        link = f"[`{package}`](../hwfeedback/harness/kwharness/{package})"
        what = text.partition("\n")[0].removesuffix(".").replace("\n", " ")
        rows.append(f"| {link} | {what} | {side and side[1]} | {', '.join(by) or 'nobody'} |")
    return "\n".join(rows)


def test_the_map_has_the_packages() -> None:
    page = (ROOT.parents[1] / "docs" / "code-map.md").read_text()
    assert table() in page, f"the table is\n{table()}"


def test_what_the_map_names_is_there() -> None:
    page = (ROOT.parents[1] / "docs" / "code-map.md").read_text()
    for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", page):
        places = (ROOT.parents[1], OURS, ROOT)
        assert any((p / name).exists() for p in places) or re.search("NAME|NN", name), name


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    """pytest passes over folders of some names, such as "build", unless it is told otherwise."""
    here = pathlib.Path(__file__).parent
    folders = {part for f in here.rglob("test_*.py") for part in f.relative_to(here).parts[:-1]}
    passed_over = pytestconfig.getini("norecursedirs")
    assert not [n for n in folders if any(fnmatch.fnmatch(n, p) for p in passed_over)]
