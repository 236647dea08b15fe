"""The workshop, and desks at which hostile processes ask."""

from __future__ import annotations

import os
import socket
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import waiting

from kwharness.base.built import Artifact, CompilerReport, Failed
from kwharness.base.protocol import Channel, Closed, ProtocolError
from kwharness.build import (
    build_process,
    form_extension,
    form_native,
    forms,
    object_cache,
)
from kwharness.clients import workshop
from kwharness.clients.workshop import Workshop


class Maker:
    """One that builds texts, and takes as long as they say. ``begun``: it has something to do."""

    def __init__(self) -> None:
        self.stopped = self.closed = False
        self.made: list[str] = []
        self.begun = threading.Event()

    def checked(self, raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict) or not isinstance(raw.get("source"), str):
            raise Failed("rejected", "the candidate's request to build is malformed: no source")
        key = form_native.key_of(raw["source"], ())
        return {"kind": "native", "name": "k", "source": raw["source"], "request": key}

    def make(self, request: dict[str, Any], seconds: float) -> tuple[Artifact, CompilerReport]:
        text = request["source"]
        self.made.append(text)
        self.begun.set()
        if text.startswith("slow "):
            self.takes(float(text[5:]))
        if text.startswith("broken"):
            raise Failed("build_failed", "k does not compile: line 1", "the compiler's words")
        if text.startswith("machine"):
            raise OSError("the disk is full")
        made = Artifact("k", "", __file__, "native", request["request"])
        return made, CompilerReport()

    def takes(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            if self.stopped:
                raise Failed("build_failed", "compiling: its process ended by itself")

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def makers() -> list[Maker]:
    return []


def begun(makers: list[Maker]) -> None:
    """Waits until the first of them builds."""
    waiting.until(lambda: makers, "somebody who builds")
    waiting.event(makers[0].begun, "the first build")


@pytest.fixture
def shop(makers: list[Maker]) -> Iterator[Workshop]:
    def new() -> Maker:
        makers.append(Maker())
        return makers[-1]

    yield Workshop(new, lambda _: os.open("/dev/null", os.O_RDONLY))


class Process:
    """The end of a desk that a process has."""

    def __init__(self, shop: Workshop, given: Sequence[str] = ()) -> None:
        self.desk, self.socket = shop.desk(given)
        self.channel = Channel(self.socket.dup())

    def ask(self, request: Any) -> tuple[bool, str]:
        self.channel.send({"op": "build", "request": request})
        answer, fds = self.channel.recv(120)
        for fd in fds:
            os.close(fd)
        assert answer["built"] is bool(fds)
        return bool(fds), answer.get("said", "")

    def close(self) -> None:
        self.socket.close()
        self.channel.close()
        self.desk.close()


@pytest.fixture
def process(shop: Workshop) -> Iterator[Process]:
    p = Process(shop)
    yield p
    p.close()


def test_each_request_is_made_once(shop: Workshop, process: Process, makers: list[Maker]) -> None:
    other = Process(shop)
    assert process.ask({"source": "a"}) == (True, "")
    assert process.ask({"source": "a"}) == (False, "it was handed over before")
    assert other.ask({"source": "a"}) == (True, ""), "to each process"
    built, said = process.ask({"source": "broken"})
    assert not built and said == "k does not compile: line 1\nthe compiler's words"
    assert other.ask({"source": "broken"})[1] == said
    assert makers[0].made == ["a", "broken"]
    other.close()
    assert not makers[0].closed, "somebody is there"
    process.close()
    assert makers[0].closed and not process.desk._thread.is_alive()
    later = Process(shop, [a.request for a in shop.artifacts])
    assert later.ask({"source": "a"}) == (False, "it was handed over before"), "when it was loaded"
    assert [f.said for f in shop.failed()] == [said]
    later.close()


def test_what_is_asked_for_is_bounded(
    shop: Workshop, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "MAX_OBJECTS", 3)
    monkeypatch.setattr(workshop, "MAX_ASKED", 5)
    monkeypatch.setattr(workshop, "MAX_SOURCES", 1000)
    assert all(process.ask({"source": f"a{i}"})[0] for i in range(3))
    assert "builds over 3 objects" in process.ask({"source": "a3"})[1]
    assert "over 1000 characters" in process.ask({"source": "x" * 1000})[1]
    assert len(shop.artifacts) == 3
    for _ in range(50):
        process.ask({"source": "y"})
    assert len(shop.failures) <= workshop.MAX_REFUSALS


def test_so_is_what_does_not_compile(
    shop: Workshop, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "MAX_ASKED", 5)
    for i in range(5):
        assert "does not compile" in process.ask({"source": f"broken {i}"})[1]
    assert "over 5 different builds: build once" in process.ask({"source": "broken 5"})[1]


def test_builds_take_so_long_together_and_no_longer(
    shop: Workshop, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "BUILD_S", 0.05)
    assert process.ask({"source": "slow 0.1"})[0]
    assert "takes over 0.05 s" in process.ask({"source": "b"})[1]


def test_time_is_granted_until_the_first_forward(
    shop: Workshop, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of its own: what takes a while is half done, and waits to go on."""
    now, half, on = [100.0], threading.Event(), threading.Event()
    monkeypatch.setattr(workshop, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def takes(_: Maker, seconds: float) -> None:
        now[0] += seconds / 2
        half.set()
        waiting.event(on, "the other half of a build")
        now[0] += seconds / 2

    monkeypatch.setattr(Maker, "takes", takes)
    on.set()
    process.ask({"source": "slow 2"})
    assert process.desk.granted() == 2
    half.clear()
    on.clear()
    waits = threading.Thread(target=process.ask, args=({"source": "slow 4"},), daemon=True)
    waits.start()
    waiting.event(half, "half of the second build")
    process.desk.no_more()  # while one goes on
    assert process.desk.granted() == 2 + 2
    on.set()
    waiting.ended(waits, "the answer to the second build")
    assert process.desk.granted() == 4 and shop.late == [4]
    process.ask({"source": "slow 1"})
    assert process.desk.granted() == 4 and shop.late == [4, 1]


def test_who_is_killed_has_nobody_work_for_it(
    shop: Workshop, process: Process, makers: list[Maker]
) -> None:
    process.channel.send({"op": "build", "request": {"source": "slow 3600"}})
    begun(makers)
    process.desk.close()
    assert makers[0].stopped and makers[0].closed and not process.desk._thread.is_alive()
    assert not shop.made and not shop.failures, "nothing is said of its source"
    other = Process(shop)
    assert other.ask({"source": "slow 0.01"})[0], "by another maker"
    other.close()


def test_who_waits_for_anothers_turn_can_be_killed(
    shop: Workshop, process: Process, makers: list[Maker]
) -> None:
    other = Process(shop)
    process.channel.send({"op": "build", "request": {"source": "slow 3600"}})
    begun(makers)
    other.channel.send({"op": "build", "request": {"source": "b"}})
    time.sleep(0.1)  # it waits by then, and if not, it may be killed too
    other.close()
    assert not other.desk._thread.is_alive(), "it waits for the other's turn"
    assert makers[0].made == ["slow 3600"] and not makers[0].stopped


def test_what_is_wrong_with_the_machine_is_not_the_candidates(
    shop: Workshop, process: Process
) -> None:
    process.channel.send({"op": "build", "request": {"source": "machine"}})
    with pytest.raises(Closed):
        process.channel.recv(120)
    assert isinstance(process.desk.trouble, OSError)


def frames(*texts: str) -> bytes:
    return b"".join(len(t.encode()).to_bytes(4, "big") + t.encode() for t in texts)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        (1 << 30).to_bytes(4, "big"),
        frames("[" * 5000),
        frames('{"v":1,"fds":3}'),
        frames(*['{"v":1,"op":"build","request":[]}'] * 50),
        frames('{"v":1,"request":{"source":"\\ud800"}}'),
        frames('{"v":1}'),
    ],
)
def test_nonsense_ends_at_the_desk(shop: Workshop, process: Process, data: bytes) -> None:
    process.socket.sendall(data)
    process.socket.shutdown(socket.SHUT_WR)
    process.desk._thread.join(120)
    assert not process.desk._thread.is_alive()
    assert shop.trouble is None and not shop.artifacts


def test_a_flood_is_cut_off(shop: Workshop, process: Process) -> None:
    answered = 0
    with pytest.raises(ProtocolError):
        while answered < 10 * workshop.MAX_MESSAGES:
            process.ask({"source": 3})
            answered += 1
    assert answered == workshop.MAX_MESSAGES


NATIVE = {"kind": "native", "name": "k", "source": 'extern "C" void f() {}', "flags": []}
INLINE: dict[str, Any] = {
    "kind": "load_inline", "name": "k", "sources": ["int f();"], "functions": None, "flags": [],
    "ldflags": [], "headers": True, "handling": True, "module": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        None, [], {}, {**NATIVE, "flags": "-O3"}, {**NATIVE, "source": 3},
        {**NATIVE, "name": "a/b"},
        {**INLINE, "files": {"../x.h": ""}}, {**INLINE, "files": {"/etc/x": ""}},
        {**INLINE, "units": ["a.cpp", "b.cpp"]}, {**INLINE, "folders": ["a/../.."]},
        {**INLINE, "include_paths": ["relative"]}, {**INLINE, "asked": "a-b"},
        {**INLINE, "functions": {"f(); system(": ""}}, {**INLINE, "files": {"a": 3}},
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused(raw: Any) -> None:
    maker = build_process.Maker(None, "", "strict", "", "", lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(Failed, match="malformed"):
        maker.checked(raw)


def test_a_key_is_made_where_it_is_built() -> None:
    wrong = {**NATIVE, "request": form_native.key_of("another source", ())}
    asked = forms.checked_request(wrong, "")
    assert asked["request"] == form_native.key_of(NATIVE["source"], ())
    files = {**INLINE, "files": {"a.h": "1"}, "asked": "f_17"}
    one, other = (forms.checked_request({**files, "files": {"a.h": t}}, "") for t in "12")
    assert object_cache.object_key(one) != object_cache.object_key(other), "by every header"
    named = forms.checked_request({**files, "asked": "f_18"}, "")
    assert object_cache.object_key(one) == object_cache.object_key(named), "a name is an alias"


def test_a_name_that_means_something_is_kept() -> None:
    def name(source: str, name: str = "f_17") -> str:
        return form_extension.inline_request({"name": name, "cpp_sources": source})["name"]

    plain = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}"
    assert name(plain).startswith(form_extension.ANY_NAME) and name(plain) == name(plain, "f_18")
    assert name(plain) != name(plain + "\n"), "another object has another"
    assert name("TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {}") == "f_17"
    assert name("PYBIND11_MODULE(mine, m) {}", "mine") == "mine"


def test_headers_of_ones_own_are_handed_over(tmp_path: Any) -> None:
    for where in ("one", "two"):
        folder = tmp_path / where
        (folder / "kernels").mkdir(parents=True)
        (folder / "include").mkdir()
        (folder / "include" / "a.h").write_text('#include <vector>\n#include "../kernels/b.h"\n')
        (folder / "kernels" / "b.h").write_text("int b;\n")
        (folder / "kernels" / "unused.h").write_text(f"int {where};\n")
        (folder / "kernels" / "k.cpp").write_text("#include <a.h>\n")
    requests = [
        form_extension.load_request(
            {
                "name": f"ext_{where}",
                "sources": [tmp_path / where / "kernels" / "k.cpp"],
                "extra_include_paths": [str(tmp_path / where / "include"), "/usr/include"],
                "extra_cflags": [f"-I{tmp_path / where / 'kernels'}", "-O2"],
            }
        )
        for where in ("one", "two")
    ]
    one = requests[0]
    assert one["units"] == ["kernels/k.cpp"] and set(one["files"]) == {"include/a.h", "kernels/b.h"}
    assert one["folders"] == ["include", "kernels"] and one["include_paths"] == ["/usr/include"]
    assert one["flags"] == ["-O2"]
    assert form_extension.key_of(one) == form_extension.key_of(requests[1]), "wherever they lie"
    with pytest.raises(OSError):
        form_extension.load_request({"name": "x", "sources": [str(tmp_path / "none.cpp")]})
    with pytest.raises(ValueError, match="C\\+\\+ and CUDA"):
        form_extension.load_request({"name": "x", "sources": [str(tmp_path / "none.o")]})
