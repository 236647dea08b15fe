"""A policy's answers to prompts: as many as are asked for, the same by the same seed, and none
sampled again that is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doubles import run, tiny_policy
from test_stages import MACHINE

from rl import answers


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base", 8_000)


def answered(folder: Path, base: Path, prompts: dict[str, str], **more: Any) -> Any:
    path = folder / "prompts.jsonl"
    lines = [
        json.dumps({"task": name, "messages": [{"role": "user", "content": text}]})
        for name, text in prompts.items()
    ]
    path.write_text("\n".join(lines))
    settings = {
        "policy": str(base),
        "out": str(folder / "out"),
        "prompts": str(path),
        "sampling": {"tokens": 4},
        "samples": 3,
        "lot": 2,
        "machine": MACHINE,
        **more,
    }
    code, lines = run(answers.Settings, answers.run, settings)
    if code:
        return code, lines[-1]
    return [json.loads(x) for x in (folder / "out" / "answers.jsonl").read_text().splitlines()]


def test_each_prompt_is_answered(tmp_path: Path, base: Path) -> None:
    long = {"a": "say it", "b": "again", "c": "0" * 600}
    found = answered(tmp_path, base, long)
    assert [(x["task"], x["sample"]) for x in found] == [(t, i) for i in range(3) for t in "abc"]
    for x in found:
        n = len(x["token_ids"])
        assert len(x["logprobs"]) == n and all(p <= 0 for p in x["logprobs"])
        assert (n == 0) == (x["task"] == "c")  # which leaves no room
        assert x["finish_reason"] == ("stop" if 0 < n < 4 else "length") or n == 4
        assert x["prompt_ids"]
    assert len({tuple(x["token_ids"]) for x in found if x["task"] == "a"}) > 1
    before = [(p, p.stat().st_mtime_ns) for p in sorted((tmp_path / "out" / "lots").iterdir())]
    assert len(before) == 5
    before[2][0].unlink()  # as after a kill
    (tmp_path / "out" / "answers.jsonl").unlink()
    assert answered(tmp_path, base, long) == found
    assert [p.stat().st_mtime_ns == t for p, t in before] == [True, True, False, True, True]
    (tmp_path / "other").mkdir()
    assert answered(tmp_path / "other", base, long, seed=1) != found


def test_prompts_that_are_none(tmp_path: Path, base: Path) -> None:
    code, said = answered(tmp_path, base, {})
    assert code == 2 and "holds no prompts" in said["reason"]
