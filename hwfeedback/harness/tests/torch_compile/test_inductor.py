"""What torch.compile has made in one process is there in the next."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import weakref

import pytest
from evaluating import Evaluator, new_cache, processes_of
from test_referee import SOFTMAX, model_new

from kwharness.base import paths
from kwharness.clients import errors, reference_client
from kwharness.referee import warm_pool
from kwharness.referee.builds import Builds
from kwharness.referee.opponents import Opponents
from kwharness.torch_compile import inductor

SCRIPT = """
import os, sys
sys.path.insert(0, {harness!r})
import torch
from kwharness.torch_compile import inductor
torch.set_num_threads(int(sys.argv[3]))
inductor.write_for(2)
import torch._inductor.config
torch._inductor.config.cpp_cache_precompile_headers = False  # they take half a minute
if sys.argv[1] == "takes":
    inductor.unpack(os.open(sys.argv[2], os.O_RDONLY))
x = torch.arange(12.0).view(3, 4)
with torch.no_grad():
    y = torch.compile(lambda x: torch.softmax(torch.relu(x) * 2, -1))(x)
assert torch.allclose(y, torch.softmax(x * 2, -1))
fd = inductor.packed()
assert fd >= 0
if sys.argv[1] == "gives":
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb") as f, open(sys.argv[2], "wb") as out:
        out.write(f.read())
"""


@pytest.mark.slow
def test_what_was_compiled_is_compiled_no_second_time(tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("g++")
    assert compiler
    (tmp_path / "bin").mkdir()
    wrapper, said = tmp_path / "bin" / "g++", tmp_path / "said"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{said}\nexec {compiler} "$@"\n')
    wrapper.chmod(0o755)

    def built(how: str, threads: int) -> int:
        """Returns how many libraries were built, by a process with so many threads."""
        said.write_text("")
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        script = SCRIPT.format(harness=paths.ROOT)
        env = {
            "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(home),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [sys.executable, "-I", "-c", script, how, str(tmp_path / "archive"), str(threads)]
        subprocess.run(command, env=env, check=True, timeout=300)
        return sum("-shared" in line for line in said.read_text().splitlines())

    assert built("gives", 1) > 0
    assert built("takes", 2) == 0


def test_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in inductor.CACHES:
        monkeypatch.delenv(name, raising=False)
    assert inductor.packed() == -1
    monkeypatch.setenv(inductor.CACHES[0], str(tmp_path / "inductor"))
    assert inductor.packed() == -1
    (tmp_path / "inductor").mkdir()
    fd = inductor.packed()
    assert fd >= 0
    os.close(fd)
    monkeypatch.setattr(inductor, "MAX_PACKED", 1)
    assert inductor.packed() == -1


def test_an_archive_stays_in_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in inductor.CACHES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "caches" / "inductor"
    folder.mkdir(parents=True)
    monkeypatch.setenv(inductor.CACHES[0], str(folder))
    (tmp_path / "there").write_text("as it was")
    archive = tmp_path / "archive"
    names = ["inductor/a/b.py", "inductor/../../there", "../there", str(tmp_path / "there")]
    with tarfile.open(archive, "w") as made:
        for name in names:
            made.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("inductor/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        made.addfile(link)
    with archive.open("rb") as f:
        inductor.unpack(f.fileno())
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == ["archive", "caches/inductor/a/b.py", "there"]
    assert (tmp_path / "there").read_text() == "as it was"
    assert not (folder / "link").is_symlink()


@pytest.mark.parametrize("tuned", [True, False])
def test_what_was_tuned_in_company_is_tuned_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, tuned: bool
) -> None:
    for name in inductor.CACHES:
        monkeypatch.delenv(name, raising=False)
    giver, taker = tmp_path / "giver" / "inductor", tmp_path / "taker" / "inductor"
    (giver / "ab").mkdir(parents=True)
    monkeypatch.setenv(inductor.CACHES[0], str(giver))
    for name in ("kernel.py", "kernel.best_config"):
        (giver / "ab" / name).write_text("{}")
    fd = inductor.packed()
    monkeypatch.setenv(inductor.CACHES[0], str(taker))
    try:
        inductor.unpack(fd, tuned=tuned)
    finally:
        os.close(fd)
    found = {p.name for p in taker.rglob("*") if p.is_file()}
    assert found == {"kernel.py"} | ({"kernel.best_config"} if tuned else set())


def test_what_is_kept_is_of_one_task(tmp_path: pathlib.Path) -> None:
    def descriptor() -> int:
        return os.memfd_create("compiled")

    compiled = warm_pool.Compiled()
    first, second = descriptor(), descriptor()
    compiled.keep("one", first, tuned=False)
    compiled.keep("one", -1, tuned=True)
    assert (compiled.of("one"), compiled.of("two"), compiled.tuned) == (first, -1, False)
    compiled.keep("two", second, tuned=True)
    assert (compiled.of("one"), compiled.of("two"), compiled.tuned) == (-1, second, True)
    with pytest.raises(OSError):
        os.fstat(first)
    gone = weakref.ref(compiled)
    del compiled
    assert gone() is None
    with pytest.raises(OSError):
        os.fstat(second)


def test_a_baselines_process_finds_what_another_compiled(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[set[str]] = []
    had: list[set[str]] = []
    compiled = reference_client.ReferenceClient.compiled
    precompiled = reference_client.ReferenceClient.precompiled

    def names(fd: int) -> set[str]:
        with tarfile.open(f"/proc/self/fd/{fd}") as archive:  # a place in it of its own
            return {n for n in archive.getnames() if n.endswith(".py")}

    def noted(self: reference_client.ReferenceClient, fd: int, *, tuned: bool) -> None:
        given.append(names(fd))
        precompiled(self, fd, tuned=tuned)

    def told(self: reference_client.ReferenceClient) -> int:
        fd = compiled(self)
        had.append(names(fd))
        return fd

    monkeypatch.setattr(reference_client.ReferenceClient, "precompiled", noted)
    monkeypatch.setattr(reference_client.ReferenceClient, "compiled", told)
    evaluator = Evaluator(new_cache(tmp_path_factory))
    try:
        more = {"time": True, "want_baselines": ["eager", "compile", "max-autotune"]}
        candidate = model_new("return torch.softmax(x, -1)")
        v = evaluator.verdict(SOFTMAX, candidate, require_custom=False, **more)
        assert set(v["baselines"]) == {"eager", "compile", "max-autotune"}, v["reason"]
        assert given and given[0] == had[0] != set()  # max-autotune, of what compile had
        assert had[-1] > had[0]
    finally:
        evaluator.close()


def test_a_tasks_baselines_are_timed_without_a_candidates_time(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[str] = []
    compiled, precompiled = (
        reference_client.ReferenceClient.compiled,
        reference_client.ReferenceClient.precompiled,
    )

    def gives(self: reference_client.ReferenceClient) -> int:
        handed.append("gives")
        return compiled(self)

    def takes(self: reference_client.ReferenceClient, fd: int, *, tuned: bool) -> None:
        handed.append("takes")
        precompiled(self, fd, tuned=tuned)

    monkeypatch.setattr(reference_client.ReferenceClient, "compiled", gives)
    monkeypatch.setattr(reference_client.ReferenceClient, "precompiled", takes)
    evaluator = Evaluator(new_cache(tmp_path_factory))
    try:
        more = {"known": {}, "require_custom": False, "want_baselines": ["eager", "compile"]}
        eager = model_new("return torch.softmax(x, -1)")
        v = evaluator.verdict(SOFTMAX, eager, time_baselines=True, **more)
        assert v["status"] == "correct", v["reason"]
        assert v["baselines"].keys() == {"eager", "compile"} and min(v["baselines"].values()) > 0
        assert (v["candidate_ms"], v["speedup"]) == (0.0, None)
        assert set(evaluator.known[SOFTMAX]["baselines"]) == {"eager", "compile"}
        assert handed[:2] == ["gives", "takes"]  # the calibration, and who is timed first
        handed.clear()
        v = evaluator.verdict(SOFTMAX, eager, uncompiled=True, **more)
        assert (v["status"], v["baselines"], handed) == ("correct", {}, [])
    finally:
        evaluator.close()


def test_who_tells_nothing_of_what_it_compiled_was_timed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(_: reference_client.ReferenceClient) -> int:
        raise errors.WorkerLate("compiled", 1)

    monkeypatch.setattr(reference_client.ReferenceClient, "compiled", late)
    request = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol" / "evaluate.json"
    processes = processes_of(None, json.loads(request.read_text()))
    opponents = Opponents(processes, Builds(processes.context))
    opponents.leave("compile", reference_client.ReferenceClient(None))
    assert processes.context.compiled.of(opponents._compiled_key()) == -1
