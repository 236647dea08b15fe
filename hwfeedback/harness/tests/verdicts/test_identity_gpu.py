"""Exported files as candidates on a GPU: each is judged as itself. Skipped where there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from evaluating import Evaluator, new_cache
from test_cuda_driver import ABSENT, SEES
from test_gpu import KERNEL, LAUNCHED, SMALL, verdict

from kwharness.export import inline_loader

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(bool(ABSENT), reason=f"no GPU here: {ABSENT}"),
]


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    j = Evaluator(new_cache(tmp_path_factory), {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]})
    yield j
    j.close()


@pytest.mark.parametrize("candidate", [KERNEL, LAUNCHED], ids=["nvcc", "launched"])
@pytest.mark.parametrize("word,status", [("==", "correct"), ("!=", "wrong")])
def test_an_exported_file_is_itself(
    evaluator: Evaluator, candidate: str, word: str, status: str
) -> None:
    """A line of a string looks like one of the loader's, and its length decides."""
    note = "\nnative = _kernelwright_loader.native\n"
    text = candidate.replace(
        "        return y\n", f"        return y if len(NOTE) {word} {len(note)} else y + 1\n"
    )
    assert text != candidate
    text = inline_loader.standalone(text + f'\n\nNOTE = """{note}"""\n')
    v = verdict(evaluator, SMALL, text)
    assert v["status"] == status, v
    assert v["candidate"] == hashlib.sha256(text.encode()).hexdigest()
    assert v["build"]["form"] == "native"
