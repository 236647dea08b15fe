"""Pairs of a prompt and an answer, which policies learn from.

They are JSON lines: ``{"prompt": TEXT or MESSAGES, "answer": TEXT}``, other keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.batch import Row
from rl.chat import Chat
from rl.errors import BadInput


@dataclass(frozen=True)
class Pair:
    """``messages`` up to the answer."""

    messages: list[dict[str, Any]]
    answer: str


def read_pairs(path: Path) -> list[Pair]:
    """Returns the pairs in a file of JSON lines."""
    mend = 'write lines of {"prompt": ..., "answer": ...}'
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", mend) from error
    out = []
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            prompt, answer = found["prompt"], found["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path}, line {at} is no pair: {error!r}", mend) from error
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(answer, str) or not _are_messages(messages):
            raise BadInput(f"{path}, line {at} is no pair of messages and an answer", mend)
        out.append(Pair(messages, answer))
    return out


def _are_messages(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(m, dict) and isinstance(m.get("content"), str) and isinstance(m.get("role"), str)
        for m in found
    )


def texts_of(pairs: Sequence[Pair]) -> list[str]:
    """Returns all texts of pairs."""
    return [t for p in pairs for t in (*(m["content"] for m in p.messages), p.answer)]


def rows_of_pairs(pairs: Sequence[Pair], tokenizer: Any, whole: bool = False) -> list[Row]:
    """Returns a row for each pair: the answer and the end-of-text token are what is learnt; with
    ``whole`` the prompt, too. A model from nothing learns by it to look back: names and sizes of a
    prompt come in it several times.
    """
    chat = Chat(tokenizer)
    rows = []
    for pair in pairs:
        prompt = chat.prompt(pair.messages)
        answer = [*chat.encode(pair.answer), tokenizer.eos_token_id]
        begins = 1 if whole else len(prompt)
        n = len(prompt) + len(answer) - begins
        rows.append(Row(prompt + answer, begins, [1] * n, [0.0] * n, [0] * n))
    return rows
