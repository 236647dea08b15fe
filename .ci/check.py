#!/usr/bin/env python3
"""Format, lint, types and tests of what has changed, within a minute: make check.

Changed is what differs from the last commit; where nothing does, what that commit changed. Of Go
those packages are tested, short and without the race detector; of the harness the tests that import
what has changed. What there is no time for is told: make test runs it.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).parent.parent
HARNESS = "hwfeedback/harness"
TESTS = f"{HARNESS}/tests"
TRAINER = "trainer/rl"
TRAINING = os.environ.get("TRAINING", "")  # what its tests need beside the environment
TESTS_S = 40  # for the tests of each language
PYTHON = os.environ.get("PYTHON") or sys.executable


def lines(*command: str) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line]


def changed() -> list[str]:
    """Returns the changed files that are there, as paths from the root."""
    found = lines("git", "diff", "--name-only", "HEAD")
    found += lines("git", "ls-files", "--others", "--exclude-standard")
    if not found:
        found = lines("git", "show", "--name-only", "--format=", "HEAD")
    return sorted(p for p in set(found) if (ROOT / p).is_file())


def packages(files: list[str]) -> list[str]:
    """Returns the Go packages of these files: templates and test data are those of the folder above
    them. Python and prose are of none.
    """
    found = set()
    for name in files:
        path = pathlib.PurePath(name)
        if path.suffix in (".py", ".md") or path.parts[0].startswith("."):
            continue
        folder = next(f for f in path.parents if list((ROOT / f).glob("*.go")))
        found.add(f"./{folder}")
    return sorted(found)


def imported(path: pathlib.Path) -> set[str]:
    """Returns the modules that a file imports, in full, and what it imports out of modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def tests_of(files: list[str]) -> list[str]:
    """Returns the test files of changed Python: themselves, and who imports what has changed."""
    paths = [pathlib.PurePath(f) for f in files if f.startswith(HARNESS)]
    names = {p.stem for p in paths}
    modules = {".".join(p.relative_to(HARNESS).with_suffix("").parts) for p in paths} | names
    found = []
    for path in sorted([*(ROOT / TESTS).rglob("test_*.py"), *(ROOT / "bench").glob("test_*.py")]):
        at = path.relative_to(ROOT).as_posix()
        if at in files or imported(path) & modules:
            found.append(at)
    # First the file that is named after what has changed.
    return sorted(found, key=lambda f: pathlib.PurePath(f).stem.removeprefix("test_") not in names)


def tests_of_trainer(files: list[str]) -> list[str]:
    """Returns the test files of the training package that changed, or name what has changed."""
    stems = {pathlib.PurePath(f).stem for f in files}
    found = []
    for path in sorted((ROOT / TRAINER / "tests").glob("test_*.py")):
        words = set(re.findall(r"\w+", path.read_text()))
        if path.stem in stems or words & stems:
            found.append(path.relative_to(ROOT).as_posix())
    return found or [f"{TRAINER}/tests"]


def steps(files: list[str]) -> list[tuple[str, list[list[str]]]]:
    """Returns what is done side by side: a name, and commands one after the other."""
    go = [f for f in files if f.endswith(".go")]
    python = [f for f in files if f.endswith(".py")]
    of_go: list[list[str]] = []
    of_python: list[list[str]] = []
    if go:
        lint = (
            ["golangci-lint", "run", "--allow-parallel-runners"]
            if shutil.which("golangci-lint")
            else ["go", "vet"]
        )
        of_go += [["bash", "-c", 'test -z "$(gofmt -l "$@" | tee /dev/stderr)"', "gofmt", *go]]
        of_go += [[*lint, *packages(go)]]
    if packages(files):
        of_go += [["go", "test", "-short", "-timeout=20m", *packages(files)]]
    if any(f.endswith(".md") for f in files):
        of_python += [[PYTHON, ".ci/prose.py"]]
    if python:
        of_python += [["ruff", "format", "--check", *python], ["ruff", "check", *python]]
        if any(f.startswith((HARNESS, TRAINER)) for f in python):
            of_python += [[PYTHON, "-m", "mypy"]]
        if any(f.startswith(HARNESS) for f in python):
            of_python += [[PYTHON, ".ci/limits.py"]]
        pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--durations=3", "-x"]
        pytest += ["--for", str(TESTS_S), "-m", "not slow and not alone"]
        if tests := tests_of(python):
            of_python += [[*pytest, *tests]]
        trained = [f for f in python if f.startswith(TRAINER)]
        if trained and os.path.isdir(TRAINING):
            paths = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}:{TRAINING}"
            of_python += [["env", paths, *pytest, *tests_of_trainer(trained)]]
    return [("Go", of_go), ("Python", of_python)]


def run(commands: list[list[str]]) -> tuple[int, str]:
    """Runs commands until one fails. Returns its exit code and what all have said."""
    said = ""
    for command in commands:
        start = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        code = 0 if done.returncode == 5 and "pytest" in command else done.returncode
        shown = " ".join(command)
        shown = shown if len(shown) < 100 else f"{shown[:100]}..."
        said += f"{done.stdout}{shown}: {code or 'good'}, "
        said += f"{time.monotonic() - start:.0f} s\n"
        if code:
            return code, said
    return 0, said


def main() -> int:
    start = time.monotonic()
    files = changed()
    print(f"{len(files)} changed files")
    todo = [(name, commands) for name, commands in steps(files) if commands]
    with ThreadPoolExecutor(max(len(todo), 1)) as pool:
        done = list(pool.map(lambda step: run(step[1]), todo))
    for (name, _), (_, said) in zip(todo, done, strict=True):
        print(f"\n== {name}\n{said}", end="")
    failed = [name for (name, _), (code, _) in zip(todo, done, strict=True) if code]
    print(f"\ncheck: {', '.join(failed) or 'nothing'} failed, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
