"""What answers.py asks, and its table."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import answers


@pytest.fixture
def files(tmp_path: pathlib.Path) -> answers.Files:
    return answers.Files(tmp_path)


def test_no_two_broken_files_are_alike_and_each_lacks_one_semicolon(files: answers.Files) -> None:
    texts = [files.broken().read_text() for _ in range(3)]
    assert len(set(texts)) == 3
    for text in texts:
        assert text.count(";") == files.right.count(";") - 1
    assert files.wrong.read_text() != files.right


def program(folder: pathlib.Path, said: str, code: int = 0) -> str:
    path = folder / "program"
    path.write_text(
        f'#!/bin/sh\necho "$KERNELWRIGHT_EVALUATION_KEEP_WARM $@" >> {folder}/asked\n'
        f"cat <<'END'\n{said}\nEND\nexit {code}\n"
    )
    path.chmod(0o755)
    return str(path)


def test_the_binaries_take_turns_and_each_case_has_a_row(
    files: answers.Files, tmp_path: pathlib.Path
) -> None:
    said = '{"status": "build_failed", "reason": "line 3"}'
    sides = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        side = answers.Side(name, program(tmp_path / name, said), tmp_path / name, "PYTHON")
        sides.append(side)
    cases = {n: answers.ALONE[n] for n in list(answers.ALONE)[:2]}
    answers.measure(sides, files, cases, 2)
    for side in sides:
        asked = (side.folder / "asked").read_text().splitlines()
        assert [line.split()[0] for line in asked] == ["5m"] * 3 + ["0s"] * 3
        assert all(line.split()[1] == "eval" for line in asked)
        assert {n: len(s) for n, s in side.seconds.items()} == dict.fromkeys(cases, 2)
    sides[0].seconds, sides[1].seconds = {"a": [3.0, 1.0, 2.0]}, {"a": [0.125]}
    assert answers.row("a", sides) == "| a | 2.00 (1.00 to 3.00) | 0.12 (0.12 to 0.12) |"


@pytest.mark.parametrize("name", list(answers.ALONE))
def test_another_answer_than_expected_is_no_figure(
    files: answers.Files, tmp_path: pathlib.Path, name: str
) -> None:
    said = '{"status": "correct", "reason": "", "runs": []}'
    side = answers.Side("one", program(tmp_path, said, 5 if ".py" in name else 0), tmp_path, "P")
    with pytest.raises(SystemExit):
        answers.ALONE[name](side, files)
