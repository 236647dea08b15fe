"""References and candidates as texts: ``parse`` has an answer for every one, a fingerprint groups
what differs in comments, and whatever is judged or given out stays the text that it is.
"""

from __future__ import annotations

import pathlib
import re

import hostile

from kwharness.build import reports, source
from kwharness.export import file_facts, file_loader, inline_loader

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def seeds() -> list[bytes]:
    files = [*sorted(EXAMPLES.glob("*.py"))[:6], *sorted(EXAMPLES.glob("candidates/*.py"))]
    return [
        *(p.read_bytes() for p in files),
        b"",
        b"class Model: pass\r\ndef get_inputs(): return []\r\n",
        b"\xef\xbb\xbfclass ModelNew: x = '\\ud800'\n",
        b"x = " + b"(" * 300 + b")" * 300,
        b"x = " + b"-" * 3000 + b"1",
        b"x = " + b"9" * 5000,
        b"from torch.utils.cpp_extension import load_inline as l\nl(name='x', cuda_sources='y')\n",
    ]


def one(data: bytes) -> None:
    # Lone surrogates too: a text may have come as JSON.
    text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")
    for what in ("reference", "candidate"):
        said = source.parse(text, what)
        assert re.fullmatch("([0-9a-f]{64})?", said.normalised_hash)
        assert said.form in ("native", "load_inline", "triton", "none")
        assert "triton" in said.called or said.form != "triton"
        assert type(said.lazy) is bool
        assert not said.given or (what == "reference" and said.given.isidentifier())
        assert said.language in ("", "cpp", "cuda", "triton")
        assert said.normalised_hash or said.problems, "neither hash nor reason"
        assert len(said.problems) <= reports.MAX_PROBLEMS
        for p in said.problems:
            assert isinstance(p, str) and p and len(p) < 5000, p
        hostile.sendable(said.to_json())
        if said.normalised_hash and not text.endswith("\\"):
            commented = source.parse(f"{text}\n# a comment\n", what)
            assert commented.normalised_hash == said.normalised_hash, "another group"
            shown = source.normalised_hash(text, what)
            assert shown == said.normalised_hash
        if said.normalised_hash:
            _stays_itself(text)


def _stays_itself(text: str) -> None:
    try:
        given_out = inline_loader.standalone(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    read = inline_loader.read_as(given_out)
    assert len(file_facts.lines(read)) == len(file_facts.lines(given_out)), "its lines have moved"
    if inline_loader.LOADER not in given_out and file_loader.MARK not in given_out:
        assert given_out == text == read, "it is another text"
    else:
        assert inline_loader.standalone(given_out) == given_out, "it is exported to something else"
