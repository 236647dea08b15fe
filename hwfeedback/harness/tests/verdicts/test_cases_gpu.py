"""The cases in CUDA, and kernels for larger tasks, each beside the wrong ones that come easily.

A file of ``cases/cuda`` holds several candidates. The first lines of its head name one each, with
what is put in the place of what. Those of ``cases/cuda/large`` begin with their reference, as files
of ``honest`` do. Without a GPU each is built, and nothing is judged.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from evaluating import Evaluator, new_cache
from test_cases import CASES, EXPECTED, LEVELS, WRONG, had_two_right_values, is_right, text
from test_cuda_driver import SEES, gpu
from test_honest import parts_of

from kwharness.base.requests import Candidate
from kwharness.build import builder_client

HEAD = re.compile(r"# ([a-z_/]+): (.+)\n")
TOLD = "told"  # the name of a line with what right ones take for granted


def heads_and_text(path: pathlib.Path) -> tuple[list[tuple[str, str]], str]:
    """Returns names and what is said of them, and the file without these lines."""
    whole, heads, at = path.read_text(), [], 0
    while m := HEAD.match(whole, at):
        heads.append((m[1], m[2]))
        at = m.end()
    return heads, whole[at:]


def candidates(path: pathlib.Path) -> dict[str, str]:
    """Returns a file's texts by name. Several lines of one name go one after the other."""
    heads, whole = heads_and_text(path)
    found: dict[str, str] = {}
    for name, said in heads:
        if name == TOLD:
            continue
        old, put, new = said.partition(" -> ")
        made = found.get(name, whole)
        assert made.count(old) == 1 if put else said == "as it stands", f"{path.name}: {said}"
        found[name] = made.replace(old, new) if put else made
    return found


FOLDER = CASES / "cuda"
FORMS = {name: t for f in sorted(FOLDER.glob("*.py")) for name, t in candidates(f).items()}
# Of larger tasks: reference and candidate, by the name of both.
LARGE = {
    f"{f.stem}/{name}": parts_of(t)
    for f in sorted((FOLDER / "large").glob("*.py"))
    for name, t in candidates(f).items()
}
RIGHT = [name for name in LARGE if name.endswith("/right")]


def told_of(name: str) -> list[str]:
    """Returns what the right candidate of a large task takes for granted."""
    heads, _ = heads_and_text(FOLDER / "large" / f"{name.partition('/')[0]}.py")
    return [words for key, said in heads if key == TOLD for words in said.split(", ")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    j = Evaluator(new_cache(tmp_path_factory), {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]})
    yield j
    j.close()


def test_every_case_has_a_form_and_every_kernel_wrong_ones() -> None:
    assert set(FORMS) == {name for name, *_ in EXPECTED}
    assert len(RIGHT) == 5
    wrong = [name.partition("/")[0] for name in LARGE if "/wrong_" in name]
    assert all(wrong.count(name.partition("/")[0]) == 2 for name in RIGHT)
    assert len(RIGHT) + len(wrong) == len(LARGE)


BUILT = {name: FORMS[name] for name in FORMS} | {name: t for name, (_, t) in LARGE.items()}


@pytest.mark.parametrize("name", BUILT)
def test_it_builds(server: Any, cache: str, name: str) -> None:
    candidate = Candidate(BUILT[name], "cpp")
    built = builder_client.build(
        server, candidate, cache, mode="weak", device="cuda", arch="sm_90a"
    )
    assert built.status == "", f"{built.reason} {built.build.log}"
    kernels = built.build.kernels
    assert kernels and not any(k.spill_load_bytes for k in kernels), kernels


@gpu
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "candidate, reference, right, told", EXPECTED, ids=[name for name, *_ in EXPECTED]
)
def test_a_case_gets_the_verdict_that_a_user_expects(
    evaluator: Evaluator, candidate: str, reference: str, right: bool, told: list[str], level: str
) -> None:
    """Strict inputs refuse no right one that takes nothing for granted, so it is judged once."""
    task, form = text(reference), FORMS[candidate]
    v = evaluator.verdict(task, form, level, built=True, strict_inputs=right and not told)
    if not right:
        assert v["status"] == "wrong" and WRONG[candidate] in v["reason"], v["reason"]
        return
    is_right(v, level, told)
    if told:
        strict = evaluator.verdict(task, form, level, built=True, strict_inputs=True)
        assert strict["status"] == "wrong", strict["reason"]
        assert told[0] in strict["reason"] or "NaN" in strict["reason"], strict["reason"]
    if candidate == "rounding/right_reciprocal":
        had_two_right_values(v)


@gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_certified(evaluator: Evaluator, name: str) -> None:
    task, candidate = LARGE[name]
    more: dict[str, Any] = {"want_baselines": ["eager"], "certify_s": 5.0, "threads": 4}
    v = evaluator.verdict(task, candidate, "certify", built=True, time=True, cold=True, **more)
    is_right(v, "certify", told_of(name))
    assert v["candidate_ms"] > 0 and v["work"]["custom"] > 0.9


@gpu
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [name for name in LARGE if name not in RIGHT])
def test_a_wrong_kernel_is_wrong(evaluator: Evaluator, name: str, level: str) -> None:
    v = evaluator.verdict(*LARGE[name], level, built=True)
    assert v["status"] == "wrong", v["reason"]
