"""What a candidate has built first, from its text, and by a server without torch: the same verdict
as that of whoever imports the candidate.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from kwharness.base.built import BuildResult
from kwharness.base.configs import CandidateConfig
from kwharness.base.protocol import Channel
from kwharness.base.requests import Candidate
from kwharness.build import builder_client, first_request
from kwharness.machine import toolchain
from kwharness.process import fork_client
from kwharness.process.fork_client import ForkServer
from kwharness.process.messages import Spawn

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

HEAD = "import math\nimport torch\nfrom torch import nn\nfrom kernelwright import native\n"
SOURCE = """
#include "kw/reduce.h"
extern "C" void twice(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++)
        y[i] = 2 * x[i]
}
"""
RIGHT = SOURCE.replace("x[i]\n", "x[i];\n")
CLASS = """

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
"""


def call(source: str = SOURCE, more: str = "") -> str:
    return f'lib = native(r"""{source}"""{more})\n'


def request_of(text: str) -> dict[str, Any] | None:
    return first_request.first_request(text)


TOLD = {
    "a literal": HEAD + call(),
    "a name": HEAD + f'CODE = r"""{SOURCE}"""\nFLAGS = ["-O2"]\nlib = native(CODE, flags=FLAGS)\n',
    "a sum": HEAD + f'TOP = "// top\\n"\nlib = native(source=TOP + r"""{SOURCE}""")\n',
    "the module": HEAD + "import kernelwright as kw\n" + call().replace("native", "kw.native"),
    "another name": HEAD.replace("native", "native as n") + call().replace("native", "n"),
    "a docstring before": '"""Twice."""\n' + HEAD + call(more=', name="twice"'),
    "bare": HEAD + call().replace("lib = ", ""),
    "CUDA": HEAD + call(more=', language="cuda"'),
}
NOT_TOLD = {
    "an import that may fail": "import numpy\n" + HEAD + call(),
    "a name that may not be there": "from math import tao\n" + HEAD + call(),
    "in a try": HEAD + "try:\n    " + call() + "except RuntimeError:\n    lib = None\n",
    "in a function": HEAD + "def build():\n    " + call() + "    return lib\n",
    "after another call": HEAD + "torch.manual_seed(0)\n" + call(),
    "native is another": HEAD + "native = None\n" + call(),
    "native is the torch of another": HEAD + "import torch as native\n" + call(),
    "a format": HEAD + call().replace('r"""', 'rf"""'),
    "a name for two": HEAD + call(more=', name="a b"'),
    "another language": HEAD + call(more=', language="sycl"'),
    "an unknown word": HEAD + call(more=", wait=True"),
    "twice the same word": HEAD + call(more=', source=""'),
    "flags that are a text": HEAD + call(more=', flags="-O2"'),
    "nothing": HEAD,
    "no Python": HEAD + "lib = native(",
    "deep": HEAD + "x = " + "(" * 500 + ")" * 500 + "\n" + call(),
}


@pytest.mark.parametrize("name", TOLD)
def test_it_is_told(name: str) -> None:
    found = request_of(TOLD[name] + CLASS)
    assert found is not None and SOURCE.strip().splitlines()[-1] in found["source"]
    assert found["name"] == ("twice" if "docstring" in name else "native")
    assert found["flags"] == (["-O2"] if name == "a name" else [])
    assert "KW_" in found["source"]  # with the headers that it includes


@pytest.mark.parametrize("name", NOT_TOLD)
def test_what_takes_more_than_reading_is_not_told(name: str) -> None:
    assert request_of(NOT_TOLD[name] + CLASS) is None


@pytest.fixture(scope="module")
def early() -> Iterator[ForkServer]:
    server, process = fork_client.start(more=["--early"])
    yield server
    server.close()
    process.wait(60)


CANDIDATES = {
    **{n: TOLD[n] + CLASS for n in ("a literal", "CUDA")},
    "no class": HEAD + call(),
    "no Python": HEAD + call() + "class ModelNew(:\n",
    "a flag that is refused": HEAD + call(more=', flags=["-fplugin=x.so"]') + CLASS,
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_it_is_told_as_by_whoever_imports_it(
    server: ForkServer,
    early: ForkServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    candidate = Candidate(CANDIDATES[name], "cpp")

    def built(by: ForkServer, cache: str, trial: str) -> BuildResult:
        found = builder_client.build(by, candidate, str(tmp_path / cache), trial=trial)
        found.build.seconds = 0.0
        return dataclasses.replace(found, made=[])

    quick = built(server, "quick", builder_client.TRIAL)
    soon = built(early, "soon", builder_client.EARLY)
    monkeypatch.setattr(builder_client, "_build_first", lambda *_: None)
    want = built(server, "want", builder_client.TRIAL)
    assert want.status in ("build_failed", "rejected") and want.reason
    assert quick == want and soon == want


@pytest.mark.parametrize("text", [HEAD + call(RIGHT) + CLASS, *list(NOT_TOLD.values())[:5]])
def test_what_may_run_is_left_open(early: ForkServer, tmp_path: pathlib.Path, text: str) -> None:
    text += "" if "class ModelNew" in text else CLASS
    found = builder_client.build(early, Candidate(text), str(tmp_path), trial="early")
    assert (found.status, found.reason) == ("", "")
    assert not list((tmp_path / "builds").iterdir())  # whoever can run it says what it comes to


def test_the_early_referee_answers_its_requests_and_lives_on(
    early: ForkServer, tmp_path: pathlib.Path
) -> None:
    ours, theirs = Channel.pair()
    early._send(Spawn(1 << 20, "referee", config={}), [theirs.fileno()])
    theirs.close()

    def ask(**msg: Any) -> dict[str, Any]:
        ours.send({"id": 1, **msg})
        while (answer := ours.recv(120)[0])["type"] == "progress":
            pass
        return answer

    body = {"candidate": {"source": HEAD + call() + CLASS}, "cache_dir": str(tmp_path)}
    body |= {"device": "cpu", "arch": "", "custom_code": "required"}
    reference = "import torch\nclass Model(torch.nn.Module): ...\ndef get_inputs(): return []\n"
    assert ask(type="evaluate")["error"]["kind"] == "early"
    parsed = ask(type="parse", source=HEAD + call() + CLASS, what="candidate")["result"]
    assert parsed["form"] == "native" and not parsed["problems"]
    said = ask(type="build_ahead", reference=reference, **body)["result"]
    assert said["status"] == "build_failed" and len(said["fingerprint"]) == 64
    assert ask(type="build_ahead", reference="class Model(:", **body)["result"] == {"status": ""}
    with pytest.raises(Exception, match="unknown role"):
        early.spawn(CandidateConfig(sandbox="strict"))
    ours.close()
