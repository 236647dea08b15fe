"""Stages from their settings to their exit codes: what is bad is named, and nothing is lost."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import Toy, of, run, serving, tiny_policy

from rl import batch as batches
from rl import bootstrap, critic, ppo, rft, stage, tiny, trajectories
from rl.guards import Guard
from rl.learner import Learner
from rl.llama import Weights
from rl.trajectories import Sample

QUIET = {"every": 100, "tensorboard": False}
MACHINE = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base", 8_000)


def pairs(folder: Path, n: int = 24) -> str:
    path = folder / "pairs.jsonl"
    lines = [{"prompt": f"say {i % 4}", "answer": f"{i % 4}{i % 4}"} for i in range(n)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def of_bootstrap(folder: Path, base: Path | None) -> dict[str, Any]:
    return {
        "pairs": [pairs(folder)],
        "base": str(base) if base else "",
        "out": str(folder / "out"),
        "parameters": 8_000,
        "vocabulary": 260,
        "layers": 1,
        "context": 128,
        "epochs": 4,
        "batch": 8,
        "optimiser": {"lr": 1e-2},
        "machine": MACHINE,
        "saving": QUIET,
    }


def of_ppo(folder: Path, base: Path, url: str = "http://127.0.0.1:9") -> dict[str, Any]:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("\n".join(json.dumps({"id": c, "reference": c}) for c in "ab"))
    return {
        "policy": str(base),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "patience": 0.1},
        "sampling": {"tokens": 4},
        "steps": 3,
        "tasks_per_step": 2,
        "samples_per_task": 2,
        "estimator": {"truncated": "keep"},
        "machine": MACHINE,
        "saving": {"every": 1, "tensorboard": False},
        "bounds": {"kl_skip": 0, "kl_high": 0},
    }


def collected(folder: Path, n: int = 12, **more: Any) -> str:
    samples = []
    for i in range(n):
        answer = [10 + i % 3, 20, 2]
        reward = float([3, 1, -1][i % 3])
        fields: dict[str, Any] = {"reward": reward, "finish_reason": "stop", "task": str(i % 4)}
        fields |= more
        samples.append(
            Sample(
                f"e{i}", 0, [5, 6 + i], answer, [1] * 3, [-1.0] * 3, policy_version="v", **fields
            )
        )
    trajectories.write(folder / "collected.parquet", samples)
    return str(folder / "collected.parquet")


def test_bootstrap_from_nothing_learns_its_pairs(tmp_path: Path) -> None:
    code, lines = run(bootstrap.Settings, bootstrap.run, of_bootstrap(tmp_path, None))
    assert code == 0, lines[-1]
    steps = [x["metrics"]["loss"] for x in of(lines, "step")]
    assert len(steps) == 12
    assert steps[-1] < steps[0] - 1
    written = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in written] == list(range(1, 13))
    assert lines[-1]["policy"] == str(tmp_path / "out" / "policy")
    # It is a policy like any other.
    again = of_bootstrap(tmp_path, tmp_path / "out" / "policy") | {"out": str(tmp_path / "more")}
    code, lines = run(bootstrap.Settings, bootstrap.run, again)
    assert code == 0
    assert of(lines, "step")[0]["metrics"]["loss"] < steps[0] - 1


def test_tiny_makes_a_policy(tmp_path: Path) -> None:
    given = {
        "corpus": pairs(tmp_path),
        "out": str(tmp_path / "out"),
        "parameters": 8_000,
        "vocabulary": 260,
        "layers": 1,
    }
    code, lines = run(tiny.Settings, tiny.run, given)
    assert code == 0, lines[-1]
    assert (Path(lines[-1]["policy"]) / "model.safetensors").exists()


def test_rft_learns_what_was_rewarded(tmp_path: Path, base: Path) -> None:
    given = {
        "policy": str(base),
        "out": str(tmp_path / "out"),
        "trajectories": [collected(tmp_path)],
        "epochs": 6,
        "batch": 4,
        "optimiser": {"lr": 1e-2},
        "machine": MACHINE,
        "saving": QUIET,
    }
    code, lines = run(rft.Settings, rft.run, given)
    assert code == 0, lines[-1]
    assert of(lines, "start")[0]["left_out"] == {"reward": 4}
    loss = [x["metrics"]["loss"] for x in of(lines, "step")]
    assert loss[-1] < loss[0] - 1
    given |= {"above": 3.0, "out": str(tmp_path / "none")}
    code, lines = run(rft.Settings, rft.run, given)
    assert code == 2
    assert "none of 12 episodes can be learnt from" in lines[-1]["reason"]
    # What models without token ids said is learnt from as text.
    given |= {"pairs": [pairs(tmp_path)], "out": str(tmp_path / "pairs")}
    code, lines = run(rft.Settings, rft.run, given)
    assert code == 0, lines[-1]
    assert lines[-1]["kept"] == 0 and lines[-1]["pairs"] == lines[-1]["rows"] > 0
    loss = [x["metrics"]["loss"] for x in of(lines, "step")]
    assert loss[-1] < loss[0]


def test_a_critic_learns_the_returns(tmp_path: Path, base: Path) -> None:
    given = {
        "policy": str(base),
        "out": str(tmp_path / "out"),
        "trajectories": [collected(tmp_path, 24)],
        "epochs": 40,
        "batch": 24,
        "optimiser": {"lr": 1e-2},
        "machine": MACHINE,
        "saving": QUIET,
    }
    code, lines = run(critic.Settings, critic.run, given)
    assert code == 0, lines[-1]
    told = [x["metrics"] for x in of(lines, "step")]
    assert told[0]["explained_variance"] == pytest.approx(0)
    # Before the first token of an answer nothing tells which it will be: two in three can be known.
    assert told[-1]["explained_variance"] > 0.5
    # PPO takes it, and reads trajectories, too.
    then = of_ppo(tmp_path, base) | {
        "tasks": "",
        "trajectories": given["trajectories"],
        "critic": lines[-1]["critic"],
        "out": str(tmp_path / "ppo"),
    }
    code, lines = run(ppo.Settings, ppo.run, then)
    assert code == 0, lines[-1]
    assert of(lines, "step")[0]["metrics"]["explained_variance"] > 0.4


def test_all_metrics_of_a_step_are_told(tmp_path: Path, base: Path) -> None:
    with serving(Toy(2)) as url:
        given = of_ppo(tmp_path, base, url) | {"steps": 1, "saving": {"every": 1}}
        given["ppo"] = {"kl": 0.1, "entropy": 0.01, "epochs": 2}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0, lines[-1]
    told = of(lines, "step")[0]["metrics"]
    for name in [
        "reward",
        "reward_is_-1",
        "reward_is_1",
        "reward_is_2",
        "reward_is_3",
        "compiled_rate",
        "correct_rate",
        "faster_eager_rate",
        "faster_compile_rate",
        "speedup_p50",
        "speedup_p90",
        "entropy",
        "kl_k1",
        "kl_k3",
        "clip_low",
        "clip_high",
        "clip_dual",
        "ratio_mean",
        "ratio_max",
        "ratio_p99",
        "sampler_gap_mean",
        "sampler_gap_max",
        "value_loss",
        "explained_variance",
        "value_speedup_correlation",
        "return_mean",
        "advantage_deviation",
        "turns",
        "length",
        "truncated_rate",
        "invalid_rate",
        "looping_rate",
        "evaluation_seconds_p50",
        "infrastructure_rate",
        "tokens_per_second",
    ]:
        assert name in told, name
    assert told["turns"] == 2
    assert told["sampler_gap_max"] < 1e-4
    assert list((tmp_path / "out" / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stepz": 3}, "ppo.json has an unknown key stepz"),
        ({"steps": "3"}, "ppo.json: steps must be of type int, not text"),
        ({"steps": True}, "ppo.json: steps must be of type int, not true or false"),
        ({"machine": {"device": "tpu"}}, "device cannot be tpu"),
        ({"machine": {"parallel": "fsdp"}}, "fsdp needs torchrun"),
        ({"ppo": {"clip": {"low": []}}}, "ppo.json: ppo: clip: low must be of type float"),
        ({"tasks": "/nowhere"}, "/nowhere cannot be read"),
        ({"tasks": ""}, "exactly one of tasks and trajectories must be named"),
        ({"policy": "/nowhere"}, "there is no model folder /nowhere"),
        ({"policy": "/nowhere.gguf"}, "/nowhere.gguf is not there"),
        ({"estimator": {"kind": "grpo"}}, "estimator.kind cannot be grpo"),
        ({"estimator": {"kind": "trloo"}}, "trloo has no critic whose value could stand for a"),
        ({"environment": {"url": "http://x", "token_env": "KW_NONE"}}, "KW_NONE is not set"),
        ({"out": ""}, "out is empty"),
    ],
)
def test_bad_settings_are_named(
    tmp_path: Path, base: Path, change: dict[str, Any], said: str
) -> None:
    given = of_ppo(tmp_path, base) | change
    config = tmp_path / "ppo.json"
    config.write_text(json.dumps(given))
    lines: list[dict[str, Any]] = []
    code = call(ppo.Settings, ppo.run, config, lines)
    assert code == 2
    assert lines[-1]["event"] == "error"
    assert said in lines[-1]["reason"]
    assert lines[-1]["hint"]


def call(kind: Any, run_it: Any, config: Path, lines: list[dict[str, Any]]) -> int:
    """Does what main does, without the process."""
    from rl.errors import StageError
    from rl.settings import read

    try:
        settings = read(kind, config)
    except StageError as error:
        lines.append({"event": "error", "reason": error.reason, "hint": error.hint})
        return error.exit_code
    return stage.run_stage(settings, run_it, lambda line: lines.append(json.loads(line)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object, not a list"),
        ("{}", "lacks policy"),
    ],
)
def test_settings_that_are_none_are_named(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "ppo.json"
    config.write_text(text)
    lines: list[dict[str, Any]] = []
    assert call(ppo.Settings, ppo.run, config, lines) == 2
    assert said in lines[-1]["reason"]


def test_a_second_trainer_is_refused(tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with open(out / ".lock", "w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        code, lines = run(bootstrap.Settings, bootstrap.run, of_bootstrap(tmp_path, base))
    assert code == 2
    assert lines[-1]["reason"] == f"another trainer works in {out} (process 4711)"


def test_an_environment_that_dies_is_named_and_the_stage_goes_on_later(
    tmp_path: Path, base: Path
) -> None:
    toy = Toy()
    turns = [0]

    def die(path: str, _: dict[str, Any]) -> tuple[int, Any] | None:
        turns[0] += path.endswith("/turns")
        return (502, {"error": "gone"}) if turns[0] > 6 else None

    with serving(toy) as url:
        toy.fail = die
        code, lines = run(ppo.Settings, ppo.run, of_ppo(tmp_path, base, url))
        assert code == 4
        assert "failed: /v1/episodes" in lines[-1]["reason"]
        assert [x["step"] for x in of(lines, "step")] == [1]
        toy.fail = lambda *_: None
        code, lines = run(ppo.Settings, ppo.run, of_ppo(tmp_path, base, url))
    assert code == 0
    assert [x["step"] for x in of(lines, "step")] == [2, 3]
    # Nothing listens there any more.
    code, lines = run(ppo.Settings, ppo.run, of_ppo(tmp_path, base, url) | {"steps": 4})
    assert code == 4
    assert "gave no answer" in lines[-1]["reason"]


def test_infrastructure_errors_are_left_out_and_counted(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    turns = [0]

    def flaky(path: str, _: dict[str, Any]) -> tuple[int, Any] | None:
        turns[0] += path.endswith("/turns")
        if path.endswith("/turns") and turns[0] % 4 == 1:
            return 200, {"done": True, "reward": None}
        if path.endswith("/turns") and turns[0] % 4 == 2:
            return 410, {"error": "expired"}
        return None

    with serving(toy) as url:
        toy.fail = flaky
        code, lines = run(ppo.Settings, ppo.run, of_ppo(tmp_path, base, url))
        assert code == 0
        assert all(x["metrics"]["infrastructure_rate"] == 0.5 for x in of(lines, "step"))
        assert any("refuses" in x["text"] for x in of(lines, "note"))
        toy.fail = lambda path, _: (400, {"error": "no"}) if path.endswith("/turns") else None
        code, lines = run(ppo.Settings, ppo.run, of_ppo(tmp_path, base, url) | {"steps": 4})
    assert code == 4
    assert "4 met an infrastructure error" in lines[-1]["reason"]


def test_what_a_step_sampled_is_not_judged_twice(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    with serving(toy) as url:
        given = of_ppo(tmp_path, base, url) | {"saving": QUIET}
        given["bounds"] = {"kl_skip": 0, "entropy_high": 0.1, "patience": 1}
        code, _ = run(ppo.Settings, ppo.run, given)
        assert code == 3
        assert toy.started == 4
        run(ppo.Settings, ppo.run, given)
        assert toy.started == 4


def test_a_collapse_stops_the_stage_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Guard.check

    def collapse(self: Guard, metrics: dict[str, Any], step: int) -> None:
        check(self, metrics | ({"entropy": 1e-9} if step > 1 else {}), step)

    monkeypatch.setattr(Guard, "check", collapse)
    with serving(Toy()) as url:
        given = of_ppo(tmp_path, base, url) | {"steps": 9}
        given["bounds"] = {"kl_skip": 0, "patience": 2}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 3
    assert (
        "the policy has collapsed by step 3: entropy is 1e-09, below 0.001" in lines[-1]["reason"]
    )
    assert [x["step"] for x in of(lines, "checkpoint")] == [1]
    assert not (tmp_path / "out" / "policy").exists()


def test_a_loss_that_is_not_finite_stops_before_it_is_applied(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = Learner.accumulate

    def poisoned(self: Learner, rows: Any, loss_of: Callable[..., Any]) -> float:
        return go(self, rows, lambda b, g: loss_of(b, g) * math.nan)

    monkeypatch.setattr(Learner, "accumulate", poisoned)
    code, lines = run(bootstrap.Settings, bootstrap.run, of_bootstrap(tmp_path, base))
    assert code == 3
    assert lines[-1]["reason"] == "the policy loss is nan in step 1"
    assert not of(lines, "step")


def test_out_of_memory_halves_the_micro_batch_once(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]
    collate = batches.collate

    def small(rows: Any, device: Any, packed: bool = False) -> Any:
        out = collate(rows, device, packed)
        if out.input_ids.numel() > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return out

    monkeypatch.setattr("rl.learner.collate", small)
    given = of_bootstrap(tmp_path, base)
    given["machine"] = MACHINE | {"micro_tokens": 150}
    most[0] = 80
    code, lines = run(bootstrap.Settings, bootstrap.run, given)
    assert code == 0
    notes = [x["text"] for x in of(lines, "note")]
    assert notes == ["out of memory in the actor: micro-batches are halved to 75 tokens"]
    most[0] = 20
    code, lines = run(bootstrap.Settings, bootstrap.run, given | {"out": str(tmp_path / "more")})
    assert code == 5
    assert "with micro-batches of 75 tokens" in lines[-1]["reason"]


def test_a_stage_that_is_asked_to_stop_saves_its_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = stage.Stage.begin

    def asked(self: stage.Stage, step: int, tensorboard: bool) -> None:
        begin(self, step, tensorboard)
        self.stopping = step == 0

    monkeypatch.setattr(stage.Stage, "begin", asked)
    given = of_bootstrap(tmp_path, base)
    code, lines = run(bootstrap.Settings, bootstrap.run, given)
    assert code == 7
    assert [x["step"] for x in of(lines, "checkpoint")] == [1]
    code, lines = run(bootstrap.Settings, bootstrap.run, given)
    assert code == 0
    assert [x["step"] for x in of(lines, "step")] == list(range(2, 13))


def test_an_update_that_moved_too_far_is_not_applied(tmp_path: Path, base: Path) -> None:
    with serving(Toy()) as url:
        given = of_ppo(tmp_path, base, url) | {"steps": 1, "optimiser": {"lr": 0.1}}
        given["ppo"] = {"epochs": 8}
        given["bounds"] = {"kl_skip": 0.01, "kl_high": 0}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0
    assert of(lines, "step")[0]["metrics"]["skipped"] == 1


def test_a_sampler_that_is_off_the_trainer_updates_nothing(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = Weights.logits
    monkeypatch.setattr(Weights, "logits", lambda self, states: 5 * logits(self, states))
    with serving(Toy()) as url:
        given = of_ppo(tmp_path, base, url) | {"steps": 1}
        code, lines = run(ppo.Settings, ppo.run, given)
        assert code == 3
        assert "and may be 0.05 and 1: nothing was updated" in lines[-1]["reason"]
        assert not of(lines, "step")
        # As the hint says.
        shutil.rmtree(tmp_path / "out" / "trajectories")
        given["sampling"] = given.get("sampling", {}) | {"engine": "transformers"}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0, lines[-1]
    assert of(lines, "step")[0]["metrics"]["sampler_gap_max"] < 1e-4


def test_a_server_that_samples(tmp_path: Path, base: Path) -> None:
    asked: list[dict[str, Any]] = []

    def complete(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        assert path == "/v1/completions"
        asked.append(body)
        logs = {"token_logprobs": [-5.5, -5.5], "tokens": ["token_id:50", "token_id:2"]}
        choice: dict[str, Any] = {"finish_reason": "stop", "logprobs": logs}
        if len(asked) % 2:
            choice["token_ids"] = [50, 2]
        return 200, {"choices": [choice]}

    with serving(Toy()) as url, serving(complete) as server:
        given = of_ppo(tmp_path, base, url) | {"steps": 1}
        given["sampling"] = {"kind": "server", "url": server + "/v1", "model": "m", "tokens": 4}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0, lines[-1]
    assert asked[0]["temperature"] == asked[0]["top_p"] == 1
    assert all(isinstance(i, int) for i in asked[0]["prompt"])
    told = of(lines, "step")[0]["metrics"]
    assert told["length"] == 2
    assert 0 < told["sampler_gap_mean"] < 1

    def texts(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"choices": [{"text": "x", "logprobs": None}]}

    with serving(Toy()) as url, serving(texts) as server:
        given = of_ppo(tmp_path, base, url) | {"out": str(tmp_path / "other")}
        given["sampling"] = {"kind": "server", "url": server, "model": "m"}
        code, lines = run(ppo.Settings, ppo.run, given)
        assert code == 2
        assert "gives no token ids" in lines[-1]["reason"]
    code, lines = run(ppo.Settings, ppo.run, given | {"out": str(tmp_path / "third")})
    assert code == 4


def test_a_token_is_sent_and_never_told(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KW_TEST_TOKEN", "s3cret-value")
    with serving(lambda *_: (401, {"error": "who are you"})) as url:
        given = of_ppo(tmp_path, base, url)
        given["environment"] |= {"token_env": "KW_TEST_TOKEN"}
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 4
    assert "s3cret" not in json.dumps(lines)


def test_trajectories_of_another_vocabulary_are_named(tmp_path: Path, base: Path) -> None:
    path = tmp_path / "collected.parquet"
    trajectories.write(path, [Sample("e", 0, [5], [9999], [1], [-1.0], 1.0, "stop", "v")])
    given = of_ppo(tmp_path, base) | {"tasks": "", "trajectories": [str(path)]}
    code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 2
    assert "row 0: a token id is not within the model's vocabulary" in lines[-1]["reason"]
