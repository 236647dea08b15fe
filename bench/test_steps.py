"""The steps of gpu.py: what ended well is not done again, and what was not finished goes on."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import gpu


def step(code: str, least: float = 0.0) -> gpu.Step:
    return gpu.Step("one", [sys.executable, "-c", code], least, [])


def arguments(folder: pathlib.Path, **given: pathlib.Path | None) -> argparse.Namespace:
    known = {"kernelbench": None, "cudaforge": None, "bin": "kernelwright", "device": "cuda"}
    return argparse.Namespace(results=folder, **(known | given))


def test_every_step_names_what_is_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a folder").mkdir()
    for s in gpu.steps(arguments(tmp_path, kernelbench=tmp_path / "a folder")).values():
        files = [w for w in s.words if w.startswith(("bench/", "examples/", "hwfeedback/"))]
        assert all((gpu.ROOT / f).exists() for f in files), s
        assert not any("{" in w for w in s.words), s
        assert "--kernelbench" not in s.needs
        asks = "--cudaforge" in s.words
        assert asks == ("--cudaforge" in s.needs), "what is missing is asked for"


def test_a_step_waits_for_a_program_that_is_to_be_built(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu.toml").write_text(
        "[[step]]\nname = 'one'\ncommand = 'sh -c bin/it'\nneeds = ['bin/it']\n"
    )
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert gpu.steps(arguments(tmp_path))["one"].needs == ["bin/it"]
    (tmp_path / "bin" / "it").mkdir(parents=True)
    assert gpu.steps(arguments(tmp_path))["one"].needs == []


def test_two_lists_are_a_level_of_kernelbench() -> None:
    """By the numbers in front of the names."""
    numbers = []
    for name in ("kernelbench_level2.txt", "kernelbench_level2_rest.txt"):
        lines = (gpu.ROOT / "bench" / name).read_text().splitlines()
        listed = [line for line in lines if not line.startswith("#")]
        assert all(line.startswith("level2/") and line.endswith(".py") for line in listed)
        numbers += [int(line.removeprefix("level2/").partition("_")[0]) for line in listed]
    assert sorted(numbers) == list(range(1, 101))


@pytest.mark.parametrize(
    ("code", "came"),
    [
        ("print('all of it')", "good"),
        (f"import sys; sys.exit({os.EX_TEMPFAIL})", "more"),
        ("import sys; sys.exit(3)", "failed with exit code 3"),
        ("import time; time.sleep(600)", "more"),
        ("import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(600)", "more"),
    ],
)
def test_what_comes_of_a_step(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: str, came: str
) -> None:
    monkeypatch.setattr(gpu, "GRACE_S", 0.5)
    results, s = gpu.Results(tmp_path / "results"), step(code)
    limit = 2.0 if "sleep" in code else 600.0
    assert gpu.run(s, results.output(s), limit) == came
    results.put(s, came, 2.0)
    again = gpu.Results(tmp_path / "results")
    assert again.is_over(s) == (came != "more") and again.seconds == {"one": 2.0}
    assert again.told(s) == came


def test_tests_that_passed_are_not_run_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = tmp_path / "counted"
    (tmp_path / "test_it.py").write_text(
        "import pathlib, pytest\n"
        f"COUNTED = pathlib.Path({str(counted)!r})\n"
        "@pytest.mark.parametrize('name', ['a b', 'c'])\n"
        "def test_it(name):\n"
        "    was = COUNTED.read_text() if COUNTED.exists() else ''\n"
        "    COUNTED.write_text(was + name)\n"
        "    assert name != 'c' or was.endswith('c')\n"
        "def test_elsewhere():\n"
        "    pytest.skip('no GPU')\n"
    )
    settings = (gpu.ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(settings)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    words = [sys.executable, "-m", "pytest", "test_it.py"]
    s, results = gpu.Step("one", words, 0.0, []), gpu.Results(tmp_path / "results")
    came = gpu.run(s, results.output(s), 600.0)
    results.put(s, came, 1.0)
    assert results.told(s) == "failed with exit code 1, 1 failed, 1 passed, 1 skipped"
    came = gpu.run(s, results.output(s), 600.0)
    results.put(s, came, 1.0)
    assert results.told(s) == "good, 2 passed, 1 skipped"
    assert counted.read_text() == "a bcc"


def test_several_gpus_share_the_tests(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, pytest, time\n"
        "@pytest.mark.parametrize('n', range(9))\n"
        "def test_it(n):\n"
        f"    with open({str(tmp_path / 'seen')!r}, 'a') as f:\n"
        "        print(os.environ['CUDA_VISIBLE_DEVICES'], n, file=f)\n"
        "    time.sleep(0.2)\n"
        "    assert n != 5 or os.environ.get('GOOD')\n"
    )
    (tmp_path / "pyproject.toml").write_text((gpu.ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    words = [sys.executable, "-m", "pytest", "test_it.py"]
    s, results = gpu.Step("one", words, 0.0, []), gpu.Results(tmp_path / "results")
    assert gpu.run(s, results.output(s), 600.0, ["0", "2"]) == "failed with exit code 1"
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(n for _, n in seen) == [str(n) for n in range(9)]
    assert {gpu for gpu, _ in seen} == {"0", "2"}
    monkeypatch.setenv("GOOD", "1")
    assert gpu.run(s, results.output(s), 600.0, ["0", "2"]) == "good"
    assert len((tmp_path / "seen").read_text().splitlines()) == 10, "the one that had failed"
    assert gpu.run(s, results.output(s), 600.0, ["0", "2"]) == "good"


def test_which_gpus_there_are(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.gpus_of("cuda:0,2") == ["0", "2"] and gpu.gpus_of("cuda") == []
    assert gpu.gpus_of("cuda:all") == [], "no driver"
    listed = tmp_path / "nvidia-smi"
    listed.write_text("#!/bin/sh\necho 'GPU 0: A'\necho '  MIG 1g: B'\necho 'GPU 1: A'\n")
    listed.chmod(0o700)
    assert gpu.gpus_of("cuda:all") == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpu.gpus_of("cuda:all") == ["3", "5"]


def test_peers_is_told_how_long_it_may_take(tmp_path: pathlib.Path) -> None:
    """Or it would be interrupted, and what takes longer than a step may would never end."""
    every = gpu.steps(arguments(tmp_path, kernelbench=tmp_path, cudaforge=tmp_path))
    for name in ("peers", "peers-large"):
        step = every[name]
        assert step.looks_at_the_clock and "--results" in step.words and not step.needs
