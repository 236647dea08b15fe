"""The pages: their sentences are short, and their links lead somewhere."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def loaded() -> Any:
    """Returns .ci/prose.py as a module."""
    spec = importlib.util.spec_from_file_location("prose", ROOT / ".ci" / "prose.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


prose = loaded()
LONG = " ".join(["word"] * 26)
SHORT = " ".join(["word"] * 25)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (f"{SHORT}.", []),
        (f"{LONG}.", [(1, 26)]),
        (f"One.\n\nA first. {LONG}.\nIt goes on.", [(3, 26)]),
        (f"{SHORT}\nin two lines.", [(1, 28)]),
        (f"- {SHORT}\n- {SHORT}\n  and more", [(2, 27)]),
        (f"1. {SHORT}:\n   - {LONG}", [(2, 26)]),
        (f"| {LONG} | {LONG} |\n# {LONG}\n```\n{LONG}\n```\n````\n```\n{LONG}\n````", []),
        (f"```\n{LONG}\n", []),  # a fence that nothing closes
        (f"{SHORT}. `a b. C d` {SHORT}.", [(1, 26)]),
        (f"{SHORT}. [{SHORT}](x.md#y).", []),
        (f"{SHORT}, e.g. Two.", [(1, 27)]),
        (f"{SHORT} is 3.5 or a.b", [(1, 29)]),
        (f"**{SHORT}.** Next (one). {SHORT}!", []),
        (f"{SHORT} – and", [(1, 26)]),
        (f"{SHORT} (a, ...) and on", [(1, 28)]),
    ],
)
def test_long_sentences_are_found(
    page: str, found: list[tuple[int, int]], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    assert [(line, count) for line, count, _ in prose.long_ones(path)] == found


def test_the_number_only_shrinks() -> None:
    assert prose.verdict(3, 3) == ""
    assert "shorten them" in prose.verdict(4, 3)
    assert "LONG = 2" in prose.verdict(2, 3)


def test_it_lists_them_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "a.md"
    for path in (tmp_path / "README.md", tmp_path / "CHANGELOG.md", page):
        path.write_text("Short.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "LONG", 0)
    assert prose.main([]) == 0
    page.write_text(f"Short.\n\n{LONG}.\n")
    assert prose.main([]) == 1
    assert "/a.md:3: 26 words: word word" in capsys.readouterr().out


PAGES = [*prose.pages(), *ROOT.glob("bench/notes/*.md"), *ROOT.glob("examples/report/*.md")]


def without_code(page: pathlib.Path) -> str:
    return re.sub(r"^ *(```+).*?^ *\1 *$", "", page.read_text(), flags=re.M | re.S)


def anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors that GitHub gives to a page's headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", without_code(page), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(ROOT).as_posix() for p in PAGES])
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", without_code(page)):
        if re.match(r"\w+:", target):
            continue  # another site
        path, _, anchor = target.partition("#")
        at = (page.parent / path).resolve() if path else page
        assert at.is_relative_to(ROOT) and at.exists(), target
        if anchor:
            assert anchor in anchors(at), target


def test_pages_that_code_names_are_there() -> None:
    """What is read in a message, a comment or the settings can be opened."""
    named = re.compile(r"(?<![\w/])(?:docs|bench/notes|examples/report)/[\w-]+\.md\b")
    rooms = [p for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")]
    files = [p for room in rooms for kind in ("go", "py", "toml") for p in room.rglob(f"*.{kind}")]
    files += [*ROOT.glob("*.go"), *ROOT.glob("*.toml"), ROOT / "Makefile", *ROOT.glob(".ci/*.*")]
    texts = {path: path.read_text(errors="replace") for path in files}
    assert sum(len(named.findall(text)) for text in texts.values()) > 30
    for path, text in texts.items():
        for name in named.findall(text):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(ROOT).as_posix() for p in PAGES])
def test_files_that_pages_name_are_there(page: pathlib.Path) -> None:
    rooms = "|".join(p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] != ".")
    named = rf"(?<![\w./-])(?:{rooms}|\.ci)/[\w/.-]+\.(?:go|h|md|py|toml|txt|txtar)\b"
    for name in re.findall(named, page.read_text()):
        assert (ROOT / name).exists() or "NAME" in name, name
