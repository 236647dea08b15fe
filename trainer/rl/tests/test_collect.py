"""A policy plays and is not trained: what is played once is not played again, and what is said of
it is over all episodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doubles import Toy, of, run, serving, tiny_policy
from test_stages import MACHINE, of_bootstrap

from rl import collect, rft, trajectories
from rl.collect import rates
from rl.trajectories import Episode, Sample


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base", 8_000)


def of_collect(folder: Path, base: Path, url: str, **more: Any) -> dict[str, Any]:
    tasks = folder / "tasks.jsonl"
    split = {"a": "train", "b": "val", "c": "kinds"}
    held = more.get("held_out", False)
    names = "abc" if held else "ab"
    lines = [json.dumps({"id": c, "reference": c, "split": split[c]}) for c in names]
    tasks.write_text("\n".join(lines))
    return {
        "policy": str(base),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "patience": 0.1},
        "sampling": {"tokens": 4},
        "samples_per_task": 3,
        "lot": 2,
        "machine": MACHINE,
        **more,
    }


def test_what_was_played_is_not_played_again(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    with serving(toy) as url:
        code, lines = run(collect.Settings, collect.run, of_collect(tmp_path, base, url))
        assert code == 0, lines[-1]
        assert toy.started == 6
        end = lines[-1]
        assert end["episodes"] == 6 and end["all"]["n"] == 6
        assert {k: v["n"] for k, v in end["splits"].items()} == {"train": 3, "val": 3}
        files = sorted(Path(end["trajectories"]).glob("*.parquet"))
        assert len(files) == 3
        files[1].unlink()  # as after a kill
        before = files[0].read_bytes()
        code, lines = run(collect.Settings, collect.run, of_collect(tmp_path, base, url))
        assert code == 0, lines[-1]
        assert toy.started == 8
        assert files[0].read_bytes() == before
        assert lines[-1]["all"] == end["all"]  # the same draws by the same seed
    outcomes = [json.loads(x) for x in Path(end["outcomes"]).read_text().splitlines()]
    assert [x["task"] for x in outcomes] == ["a", "b"] * 3
    assert all(x["verdict"]["status"] in ("correct", "wrong") for x in outcomes)
    steps = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in steps] == [1, 2, 3]


def test_an_error_of_the_machinery_is_played_again(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    failed: list[str] = []

    def once(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        if path.endswith("/turns") and not failed:
            failed.append(path)
            return 502, {"error": "out of order", "infrastructure": True}
        return None

    toy.fail = once
    with serving(toy) as url:
        code, lines = run(collect.Settings, collect.run, of_collect(tmp_path, base, url))
    assert code == 0, lines[-1]
    assert toy.started == 7
    assert lines[-1]["episodes"] == 6 and lines[-1]["lost"] == 0


def test_a_prompt_that_does_not_fit_is_the_policys_own(tmp_path: Path, base: Path) -> None:
    """Its episodes count as answers that left nothing, and are not played again."""
    toy = Toy()
    with serving(toy) as url:
        given = of_collect(tmp_path, base, url)
        tasks = [{"id": "a", "reference": "0" * 600}, {"id": "b", "reference": "b"}]
        (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(t) for t in tasks))
        code, lines = run(collect.Settings, collect.run, given)
    assert code == 0, lines[-1]
    assert toy.started == 6 and len(toy.given_up) == 3
    end = lines[-1]
    assert end["episodes"] == 6 and end["lost"] == 0
    outcomes = [json.loads(x) for x in Path(end["outcomes"]).read_text().splitlines()]
    cut = [x for x in outcomes if x["task"] == "a"]
    assert [(x["reward"], x["finish_reason"]) for x in cut] == [(None, "limit")] * 3
    assert all(x["reward"] is not None for x in outcomes if x["task"] == "b")


def test_what_a_limit_cut_counts(tmp_path: Path, base: Path) -> None:
    toy = Toy(2)
    with serving(toy) as url:
        given = of_collect(tmp_path, base, url, limits={"turns": 1})
        code, lines = run(collect.Settings, collect.run, given)
    assert code == 0, lines[-1]
    assert toy.started == 6
    assert lines[-1]["episodes"] == 6 and lines[-1]["all"]["reward"] == -1


def test_held_out_tasks_are_for_measurements_alone(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    with serving(toy) as url:
        given = of_collect(tmp_path, base, url, held_out=True)
        code, lines = run(collect.Settings, collect.run, given)
        assert code == 0, lines[-1]
        assert sorted(lines[-1]["splits"]) == ["kinds", "train", "val"]
        given |= {"held_out": False, "out": str(tmp_path / "other")}
        code, lines = run(collect.Settings, collect.run, given)
    assert code == 2
    assert "is held out: it is of the split kinds" in lines[-1]["reason"]


def sample(reward: float | None, status: str | None) -> Episode:
    verdict = None if status is None else {"status": status}
    finish = "stop" if reward is not None else "length"
    one = Sample("e", 0, [1], [2], [1], [0.0], reward, finish, "v", "t", verdict)
    return Episode("e", [one])


def test_rates_are_of_all_episodes() -> None:
    got = rates(
        [
            sample(3.0, "correct"),
            sample(2.0, "correct"),
            sample(1.0, "correct"),
            sample(-1.0, "wrong"),
            sample(-1.0, "build_failed"),
            sample(-1.0, None),  # no candidate
            sample(None, None),  # cut by a limit here
            sample(-1.0, "rejected"),
        ]
    )
    assert got == {
        "n": 8,
        "built": 0.5,
        "correct": 3 / 8,
        "faster_eager": 2 / 8,
        "faster_compile": 1 / 8,
        "reward": 1 / 8,
    }


def test_nothing_to_learn_from_can_be_an_end(tmp_path: Path, base: Path) -> None:
    samples = [Sample("e", 0, [5], [6, 2], [1, 1], [-1.0, -1.0], -1.0, "stop", "v", "t")]
    trajectories.write(tmp_path / "collected.parquet", samples)
    given = {
        "policy": str(base),
        "out": str(tmp_path / "out"),
        "trajectories": [str(tmp_path / "collected.parquet")],
        "may_be_none": True,
        "machine": MACHINE,
    }
    code, lines = run(rft.Settings, rft.run, given)
    assert code == 0, lines[-1]
    assert lines[-1]["kept"] == 0 and "policy" not in lines[-1]


@pytest.mark.weekly  # three processes that import all; trainer/pipeline forks programs every day
def test_a_host_forks_programs(tmp_path: Path) -> None:
    """Two programs by one host end as two by themselves: the same bits, and the same exit code."""
    import rl

    parent = str(Path(rl.__file__).parent.parent)
    made = {}
    for name in ("alone", "forked"):
        folder = tmp_path / name
        folder.mkdir()
        given = of_bootstrap(folder, None)
        (folder / "config.json").write_text(json.dumps(given))
        (folder / "bad.json").write_text(json.dumps(given | {"batch": "many"}))
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "rl.bootstrap", "--config", str(alone / "config.json")]
    subprocess.run(command, check=True, capture_output=True, cwd=parent)
    host = subprocess.Popen(
        [sys.executable, "-m", "rl.host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=parent,
    )
    assert host.stdin is not None and host.stdout is not None
    codes = []
    for config in ("config.json", "bad.json"):
        request = {"module": "rl.bootstrap", "config": str(tmp_path / "forked" / config)}
        request |= {"folder": str(tmp_path), "log": str(tmp_path / "log.txt")}
        host.stdin.write(json.dumps(request) + "\n")
        host.stdin.flush()
        lines = []
        while not lines or lines[-1]["event"] != "exit":
            lines.append(json.loads(host.stdout.readline()))
        codes.append(lines[-1]["code"])
        assert of(lines, "forked")
        made[config] = lines
    host.stdin.close()
    assert host.wait() == 0
    assert codes == [0, 2]
    assert "batch must be of type int" in of(made["bad.json"], "error")[0]["reason"]
    name = "out/policy/model.safetensors"
    assert (alone / name).read_bytes() == (tmp_path / "forked" / name).read_bytes()
