"""Two texts are two programs: each is judged as itself, to the last byte, whatever was judged
before. The cases of cases/identity are pairs that differ in what a syntax tree does not have.
"""

from __future__ import annotations

import inspect
import linecache
import pathlib
import sys
import traceback
import types
from collections.abc import Iterator

import pytest
from evaluating import Evaluator, new_cache

from kwharness.base import paths
from kwharness.base.requests import Candidate
from kwharness.build import builder_client, object_cache, source
from kwharness.export import inline_loader
from kwharness.standalone import interpreter
from kwharness.workers import builder as worker_builder
from kwharness.workers import candidate as worker_candidate
from kwharness.workers import serving

CASES = pathlib.Path(__file__).parents[1] / "cases" / "identity"
REFERENCE = (CASES / "reference.py").read_text()
PAIRS = ("comment", "docstring", "line")
# A line is another in an exported file, which says so itself.
FORMS = [(p, f) for p in PAIRS for f in ("as it is", "windows")] + [("docstring", "exported")]


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    evaluator = Evaluator(new_cache(tmp_path_factory))
    yield evaluator
    evaluator.close()


def case(name: str) -> str:
    return (CASES / f"{name}.py").read_text()


@pytest.mark.parametrize("pair", PAIRS)
def test_the_pairs_have_one_syntax_tree(pair: str) -> None:
    trees = {source.normalised_hash(case(f"{pair}_{kind}")) for kind in ("honest", "false")}
    assert len(trees) == 1


@pytest.mark.parametrize("order", [("honest", "false"), ("false", "honest")])
@pytest.mark.parametrize("pair,form", FORMS)
def test_whichever_comes_first(
    evaluator: Evaluator, pair: str, order: tuple[str, ...], form: str
) -> None:
    for kind in order:
        text = case(f"{pair}_{kind}") + f"\n# {order}\n"  # nothing of the other order is kept
        if form == "exported":
            text = inline_loader.standalone(text)
        if form == "windows":
            text = text.replace("\n", "\r\n")
        v = evaluator.verdict(REFERENCE, text, built=True)
        assert v["status"] == ("correct" if kind == "honest" else "wrong"), v
        again = evaluator.verdict(REFERENCE, text, built=True)
        assert (again["status"], again["build"]["cached"]) == (v["status"], True)
        assert again["candidate"] == v["candidate"]


NOTE = "\nnative = _kernelwright_loader.native\n"


@pytest.mark.parametrize("kind,word", [("correct", "=="), ("wrong", "!=")])
def test_strings_of_an_exported_file_are_its_own(
    evaluator: Evaluator, kind: str, word: str
) -> None:
    """A line of a string looks like one of the loader's."""
    step = f"1 if len(note) {word} {len(NOTE)} else 16"
    text = case("docstring_honest").replace("int(ModelNew.forward.__doc__)", step)
    v = evaluator.verdict(
        REFERENCE, inline_loader.standalone(text + f'note = """{NOTE}"""\n'), built=True
    )
    assert v["status"] == kind, v


def run(text: str, name: str = "candidate") -> types.ModuleType:
    return serving.run_source(text, name, worker_candidate.FILENAME)


@pytest.fixture
def alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A folder of its own to run a source in."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("candidate", None)
    linecache.cache.pop(worker_candidate.FILENAME, None)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_program_reads_itself(alone: pathlib.Path, mark: str, end: str) -> None:
    lines = [
        '"""A note: é."""',
        "# a comment",
        "def f():  # another",
        '    "one"',
        "    raise ValueError(__file__)",
        "",
        "x = '''a",
        "b\x0cc\u2028d'''",
        "def g(): pass",
        "",
    ]
    text = mark + end.join(lines)
    module = run(text)
    assert module.__file__ == "candidate.py" and module.__doc__ == "A note: é."
    assert pathlib.Path(module.__file__).read_bytes() == text.encode()
    assert module.f.__doc__ == "one" and module.x == "a\nb\x0cc\u2028d"
    assert inspect.getsource(module.f) == "\n".join(lines[2:5]) + "\n"
    assert inspect.getsourcelines(module.g)[1] == 9
    with pytest.raises(ValueError, match=r"^candidate\.py$") as caught:
        module.f()
    told = "".join(traceback.format_exception(caught.value))
    assert 'File "candidate.py", line 5, in f\n    raise ValueError(__file__)' in told


def test_nothing_of_ours_is_in_force(alone: pathlib.Path) -> None:
    """``from __future__ import annotations`` is serving.py's, not the candidate's."""
    assert run("def f(x: int): pass\n").f.__annotations__ == {"x": int}


def test_what_lies_in_the_way_is_left(alone: pathlib.Path) -> None:
    (alone / "candidate.py").mkdir()
    assert run("x = 1\n").x == 1


def test_one_name_everywhere() -> None:
    assert worker_builder.FILENAME == worker_candidate.FILENAME == interpreter.FILENAME
    script = pathlib.Path(paths.ROOT, interpreter.PACKAGE, interpreter.SCRIPT).read_text()
    assert f'"{interpreter.FILENAME}"' in script


@pytest.mark.parametrize(
    "text,problem",
    [
        ("\ufeffimport torch\nclass ModelNew: pass\n", ""),
        ("# coding: utf-8\nclass ModelNew: pass  # é\n", ""),
        ("# coding: latin-1\nclass ModelNew: pass\n", ""),  # ASCII is the same in both
        ("# coding: latin-1\nclass ModelNew: x = 'é'\n", "the encoding iso-8859-1"),
        ("\n# vim: set fileencoding=utf-7:\nclass ModelNew: x = '+AGE-'\n", "the encoding utf-7"),
        ("# coding: hex\nclass ModelNew: pass\n", "the source declares the encoding hex"),
        ("# coding: nonsense\nclass ModelNew: pass\n", "unknown encoding"),
        ("\ufeff# coding: latin-1\nclass ModelNew: pass\n", "encoding problem"),
    ],
)
def test_a_declared_encoding(text: str, problem: str) -> None:
    said = source.parse(text, "candidate")
    assert len(said.problems) == bool(problem), said
    assert problem in " ".join(said.problems) and bool(said.normalised_hash) != bool(problem)


@pytest.mark.parametrize(
    "other",
    [
        lambda t: t.replace('"1"', '"16"'),
        lambda t: t + "# x\n",
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t + "\n",
        lambda t: "\ufeff" + t,
    ],
)
def test_a_build_is_of_one_text(evaluator: Evaluator, other) -> None:
    text = case("docstring_honest")
    keys = {object_cache.build_key(t, "cpu", "", False) for t in (text, other(text))}
    assert len(keys) == 2
    # What they hand to the compiler is the same, and so is the object.
    built = [
        builder_client.build(evaluator.server, Candidate(t), evaluator.cache)
        for t in (text, other(text))
    ]
    assert [b.status for b in built] == ["", ""], built
    assert len({b.artifacts[0].sha256 for b in built}) == 1
    assert len({b.build.code for b in built}) == 2
