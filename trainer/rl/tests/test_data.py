"""Trajectories, tasks, chats and estimates: what goes into a step, by known values."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from doubles import CORPUS

from rl import estimate, metrics, rft, tiny, trajectories
from rl.batch import number, rows_of
from rl.chat import Chat
from rl.episodes import Environment, Limits, play
from rl.errors import BadInput, Stopped
from rl.estimate import Estimator
from rl.guards import Bounds, Guard
from rl.http import Client
from rl.pairs import Pair, read_pairs, rows_of_pairs
from rl.sampler import Completion
from rl.tasks import Curriculum, Task, TaskOrder, read_tasks
from rl.trajectories import Episode, Sample

END = 2  # the end-of-text id of a tiny tokenizer


def sample(episode: str = "e", call: int = 0, **more: Any) -> Sample:
    fields: dict[str, Any] = {
        "prompt_ids": [5, 6],
        "response_ids": [7, 8, 9],
        "response_mask": [1, 0, 1],
        "rollout_logprobs": [-0.5, 0.0, -1.5],
        "reward": None,
        "finish_reason": "stop",
        "policy_version": "v1",
    }
    return Sample(episode, call, **(fields | more))


def chat() -> Chat:
    return Chat(tiny.train_tokenizer(CORPUS, 260))


def test_trajectories_come_back_as_they_were(tmp_path: Path) -> None:
    samples = [
        sample("a", 1, reward=2.0, task="t", verdict={"status": "correct"}, seconds=0.5),
        sample("a", 0, invalid=True),
        sample("b", 0, reward=-1.0, response_ids=[], response_mask=[], rollout_logprobs=[]),
    ]
    trajectories.write(tmp_path / "one.parquet", samples)
    found = trajectories.read([tmp_path])
    assert [e.name for e in found] == ["a", "b"]
    assert found[0].samples == [samples[1], samples[0]]
    assert found[1].samples == [samples[2]]
    assert (found[0].reward, found[0].tokens, found[0].task) == (2.0, 4, "5,6")
    assert [p.name for p in tmp_path.iterdir()] == ["one.parquet"]


def test_a_file_of_another_program_needs_the_contracts_columns_alone(tmp_path: Path) -> None:
    row = {
        "episode": "a",
        "call": 0,
        "prompt_ids": [1],
        "response_ids": [2],
        "response_mask": [True],
        "rollout_logprobs": [-1.0],
        "reward": 1.0,
        "finish_reason": "stop",
        "policy_version": 3,
        "theirs": "x",
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "theirs.parquet")
    [episode] = trajectories.read([tmp_path / "theirs.parquet"])
    assert episode.samples[0].policy_version == "3"
    assert sum(rows_of(episode)[0].mask) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_mask": [1]}, r"row 0: 3 response_ids, 1 of response_mask, 3 rollout_logprobs"),
    ({"prompt_ids": []}, "row 0: the prompt is empty"),
    ({"response_ids": [7, 8, 50]}, "row 0: a token id is not within the model's vocabulary of 20"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_bad_samples_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    trajectories.write(tmp_path / "bad.parquet", [sample(**change)])
    with pytest.raises(BadInput, match=said):
        trajectories.read([tmp_path / "bad.parquet"], 20)


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    with pytest.raises(BadInput, match="holds no Parquet file"):
        trajectories.read([tmp_path])
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        trajectories.read([path])
    pq.write_table(pa.table({"episode": ["a"]}), path)
    with pytest.raises(BadInput, match="has no column call"):
        trajectories.read([path])
    trajectories.write(path, [sample(), sample()])
    with pytest.raises(BadInput, match="episode e has two samples of one call"):
        trajectories.read([path])


def test_what_can_be_trained_on() -> None:
    none = {"response_ids": [], "response_mask": [], "rollout_logprobs": []}
    episodes = [
        Episode("ended", [sample(reward=1.0)]),
        Episode("cut", [sample(reward=-1.0, finish_reason="length")]),
        Episode("cut without reward", [sample(finish_reason="limit")]),
        Episode("lost", [sample(finish_reason="error")]),
        Episode("empty", [sample(reward=1.0, **none)]),
    ]

    def names(how: str) -> tuple[list[str], int, int]:
        kept, dropped, lost = estimate.usable(episodes, how)
        return [e.name for e in kept], dropped, lost

    assert names("drop") == (["ended"], 2, 2)
    assert names("keep") == (["ended", "cut"], 1, 2)
    assert names("bootstrap") == (["ended", "cut", "cut without reward"], 0, 2)


def two_calls(reward: float | None, name: str = "e", reason: str = "stop") -> Episode:
    return Episode(
        name,
        [
            sample(name, 0, task="t"),
            sample(name, 1, prompt_ids=[3], reward=reward, finish_reason=reason, task="t"),
        ],
    )


def test_gae_runs_over_the_calls_of_an_episode_and_no_further() -> None:
    episodes = [two_calls(3.0), two_calls(-1.0, "f")]
    rows = [r for i, e in enumerate(episodes) for r in rows_of(e, i)]
    assert number(rows) == 8
    spans = estimate.spans_of(episodes, rows)
    assert [(s.begin, s.calls) for s in spans] == [(0, [0, 0, 1, 1]), (4, [0, 0, 1, 1])]
    values = torch.arange(8.0)
    settings = Estimator(policy_lambda=1.0)
    advantages, returns = estimate.by_gae(spans, values, torch.zeros(4), settings)
    assert returns.tolist() == [3] * 4 + [-1] * 4
    assert advantages.tolist() == [3, 2, 1, 0, -5, -6, -7, -8]
    short = estimate.by_gae(spans, values, torch.zeros(4), Estimator(alpha=0.5))[0]
    # lambda is 1 - 1/(0.5 * 4): deltas are 1, 1, 1, 0 and 1, 1, 1, -8
    assert short[:4].tolist() == [1.75, 1.5, 1, 0]
    assert short[7] == -8


def test_a_cut_episode_goes_on_with_the_critics_value() -> None:
    ends = torch.tensor([9.0, 2.5])

    def got(reward: float | None, truncated: str) -> list[float]:
        episode = two_calls(reward, reason="length")
        rows = rows_of(episode)
        number(rows)
        spans = estimate.spans_of([episode], rows)
        how = Estimator(policy_lambda=1.0, truncated=truncated)
        return estimate.by_gae(spans, torch.zeros(4), ends, how)[0].tolist()

    assert got(None, "bootstrap") == [2.5] * 4
    assert got(-1.0, "bootstrap") == [-1] * 4  # the environment knew
    assert got(-1.0, "keep") == [-1] * 4


def test_a_reward_is_the_last_calls() -> None:
    repeated = Episode("e", [sample(call=0, reward=3.0), sample(call=1, reward=3.0)])
    lost = Episode("f", [sample("f", 0, reward=3.0), sample("f", 1)])
    assert (repeated.reward, lost.reward) == (3.0, None)
    rows = rows_of(repeated)
    number(rows)
    spans = estimate.spans_of([repeated], rows)
    assert estimate.rewards_of(spans[0]).tolist() == [0, 0, 0, 3]


def test_leave_one_out_per_turn_and_over_processes() -> None:
    long = two_calls(3.0, "long")
    short = Episode("short", [sample("short", 0, task="t", reward=-1.0)])
    other = two_calls(1.0, "other")
    parts: list[Any] = []
    for mine in ([long], [short, other]):
        rows = [r for i, e in enumerate(mine) for r in rows_of(e, i)]
        parts.append((estimate.spans_of(mine, rows), number(rows)))
        parts[-1] = (estimate.spans_of(mine, rows), parts[-1][1])
    settings = Estimator(kind="trloo", truncated="keep")
    sent: list[Any] = []
    for spans, n in parts:
        estimate.by_leave_one_out(spans, n, settings, lambda x: sent.append(x) or [x])
    got = [estimate.by_leave_one_out(s, n, settings, lambda _: sent)[0].tolist() for s, n in parts]
    # First turns return 3, -1 and 1; second ones 3 and 1.
    assert got[0] == [3, 3, 2, 2]
    assert got[1] == [-3, -3, 0, 0, -2, -2]


def test_metrics_of_episodes() -> None:
    slow = {"status": "correct", "speedups": {"eager": {"low": 1.0}}, "speedup": {"value": 0.5}}
    fast = {
        "status": "certified",
        "speedups": {"eager": {"low": 2.0}, "compile": {"low": 1.06}},
        "speedup": {"value": 1.5},
    }
    episodes = [
        Episode("a", [sample("a", reward=3.0, verdict=fast, seconds=2.0)]),
        Episode("b", [sample("b", reward=1.0, verdict=slow, seconds=4.0)]),
        Episode("c", [sample("c", reward=-1.0, verdict={"status": "wrong"}, invalid=True)]),
        Episode("d", [sample("d", reward=-1.0, verdict={"status": "build_failed"})]),
    ]
    got = metrics.of_episodes(episodes, dropped=1, infrastructure=5)
    expected = {
        "reward": 0.5,
        "reward_is_-1": 0.5,
        "reward_is_1": 0.25,
        "reward_is_2": 0,
        "reward_is_3": 0.25,
        "compiled_rate": 0.75,
        "correct_rate": 0.5,
        "faster_eager_rate": 0.25,
        "faster_compile_rate": 0.25,
        "speedup_p50": 1.0,
        "invalid_rate": 0.25,
        "infrastructure_rate": 0.5,
        "dropped_rate": 0.1,
        "length": 2,
        "turns": 1,
        "distinct_rate": 0.25,
    }
    assert {k: got[k] for k in expected} == pytest.approx(expected)
    assert metrics.of_episodes([], 0, 2)["infrastructure_rate"] == 1
    cut = Episode("cut", [sample("cut", finish_reason="limit")])
    assert metrics.of_episodes([episodes[0], cut], 0, 0)["reward"] == 3  # not the mean with 0


def test_spikes_are_passed_over() -> None:
    guard = Guard(Bounds(norm_skip=10))
    assert not any(guard.spike(1.0 + i / 10, "actor") for i in range(10))
    assert guard.spike(20.0, "actor")
    assert guard.spike(math.inf, "actor")
    assert not guard.spike(9.0, "actor")
    assert not guard.spike(20.0, "critic")  # of which nothing is known
    again = Guard(guard.bounds)
    assert guard.spike(20.0, "actor")
    again.load(json.loads(json.dumps(guard.state())))
    assert again.spike(20.0, "actor") and again.spike(20.0, "actor")
    # Else no update would be applied any more.
    assert not again.spike(20.0, "actor") and not again.spike(21.0, "actor")


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"entropy": 0.0004}, "entropy is 0.0004, below 0.001"),
        ({"entropy": 9.0}, "entropy is 9, above 5"),
        ({"entropy": math.nan}, "entropy is nan"),
        ({"entropy": 1.0, "length": 2.0}, "length is 2, below 3"),
        ({"entropy": 1.0, "length": 900.0}, "length is 900, above 800"),
        ({"entropy": 1.0, "length": 10.0, "kl_k3": 1.5}, "kl_k3 is 1.5, above 1"),
    ],
)
def test_a_collapse_is_named_and_what_recovers_is_none(
    metrics: dict[str, float], said: str
) -> None:
    guard = Guard(Bounds(entropy_high=5.0, length_low=3.0, length_high=800.0, patience=2))
    healthy = {"entropy": 1.0, "length": 10.0, "kl_k3": 0.1}
    for step, of in enumerate((metrics, healthy, metrics)):
        guard.check(of, step)
    with pytest.raises(Stopped, match=f"the policy has collapsed by step 4: {said}") as stopped:
        guard.check(metrics, 4)
    assert "the last good checkpoint is kept" in stopped.value.hint
    Guard(Bounds(entropy_low=0, length_low=0, kl_high=0)).check({"entropy": 0.0}, 1)


@pytest.mark.parametrize(("mean", "most"), [(0.06, 0.1), (0.001, 1.2), (math.inf, math.inf)])
def test_a_sampler_far_from_the_trainer_is_named(mean: float, most: float) -> None:
    guard = Guard(Bounds())
    guard.check_gap(0.04, 0.9, 1)
    with pytest.raises(Stopped, match=f"step 2 are {mean:.3g} nats a token from the trainer's"):
        guard.check_gap(mean, most, 2)
    Guard(Bounds(sampler_gap=0)).check_gap(mean, most, 2)


def test_rank_correlation() -> None:
    assert metrics.rank_correlation([(1, 10), (2, 20), (3, 1000)]) == pytest.approx(1)
    assert metrics.rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    # Ranks 0.5, 0.5, 2 and 0, 1, 2: 1.5 / sqrt(1.5 * 2)
    assert metrics.rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.8660254)
    assert math.isnan(metrics.rank_correlation([(1, 1), (1, 2)]))
    assert math.isnan(metrics.rank_correlation([]))


def test_looping() -> None:
    rng = random.Random(1)
    text = [rng.randrange(250) for _ in range(200)]
    assert not metrics.looping(text)
    assert metrics.looping([*text, *[7] * 40])
    assert metrics.looping([*text, *[7, 8, 9] * 11])
    assert not metrics.looping([*text, *[7] * 20])
    assert not metrics.looping([*text, *text])
    assert metrics.looping(text[:60] * 4)


def test_rejection() -> None:
    def one(name: str, answer: Sequence[int], **more: Any) -> Episode:
        fields = {"response_ids": list(answer), "response_mask": [1] * len(answer)}
        return Episode(name, [sample(name, **fields, **({"reward": 1.0} | more))])

    twice = Episode("twice", [sample("twice", 0), sample("twice", 1, reward=3.0)])
    episodes = [
        one("good", [1, 2]),
        one("same", [1, 2]),
        one("best", [1, 3], reward=3.0),
        one("third", [1, 4]),
        one("bad", [1, 5], reward=-1.0),
        one("lost", [1, 6], reward=None),
        one("invalid", [1, 7], invalid=True),
        one("cut", [1, 8], finish_reason="length"),
        one("loop", [9] * 50),
        twice,
    ]
    kept, why = rft.select(episodes, 0.0, 0)
    assert [e.name for e in kept] == ["best", "good", "third"]
    assert why == {
        "looping turn": 2,
        "said before": 1,
        "invalid turn": 1,
        "cut by a limit": 1,
        "infrastructure error": 1,
        "reward": 1,
    }
    kept, why = rft.select(episodes, 0.0, 2)
    assert [e.name for e in kept] == ["best", "good"]
    assert why["task has enough"] == 1


def test_tasks_are_drawn_epoch_by_epoch_and_go_on() -> None:
    tasks = [Task(str(i), 0, {}) for i in range(5)]
    order = TaskOrder(tasks, 3, Curriculum())
    first = [t.name for t in order.draw(12)]
    assert sorted(first[:5]) == sorted(first[5:10]) == list("01234")
    again = TaskOrder(tasks, 3, Curriculum())
    again.draw(7)
    state = json.loads(json.dumps(again.state()))
    resumed = TaskOrder(tasks, 3, Curriculum())
    resumed.load(state)
    assert [t.name for t in resumed.draw(5)] == first[7:]


def test_a_curriculum_opens_levels_by_success() -> None:
    tasks = [Task("easy", 1, {}), Task("hard", 2, {})]
    order = TaskOrder(tasks, 0, Curriculum(on=True, open_at=0.6, memory=4))
    assert {t.name for t in order.draw(6)} == {"easy"}
    order.heed(1, False)
    for _ in range(20):
        order.heed(1, False)
    assert {t.name for t in order.draw(6)} == {"easy"}
    for _ in range(8):
        order.heed(1, True)
    assert {t.name for t in order.draw(6)} == {"easy", "hard"}
    resumed = TaskOrder(tasks, 0, Curriculum(on=True))
    resumed.load(json.loads(json.dumps(order.state())))
    assert {t.name for t in resumed.draw(6)} == {"easy", "hard"}


@pytest.mark.parametrize("line", ["{", '{"id": 1}', "[]", '{"reference": "x", "request": 3}'])
def test_bad_tasks_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"reference": "x"}\n\n' + line)
    with pytest.raises(BadInput, match=r"tasks.jsonl, line 3 is no task"):
        read_tasks(path, {})


def test_tasks_carry_what_is_posted(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"reference": "x", "level": 2, "request": {"rounds": 3}}\n')
    [task] = read_tasks(path, {"strategy": "rounds", "rounds": 1})
    body = {"reference": "x", "strategy": "rounds", "rounds": 3}
    assert (task.name, task.level, task.body) == ("1", 2, body)


@pytest.mark.parametrize(
    "line", ["{", '{"prompt": "a"}', '{"prompt": 3, "answer": "a"}', '{"prompt": "a", "answer": 1}']
)
def test_bad_pairs_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput, match=r"pairs.jsonl, line 1 is no pair"):
        read_pairs(path)


def test_a_pair_teaches_the_answer_and_its_end() -> None:
    tokenizer = tiny.train_tokenizer(CORPUS, 260)
    pair = Pair([{"role": "user", "content": "hi"}], "yes")
    [row] = rows_of_pairs([pair], tokenizer)
    [whole] = rows_of_pairs([pair], tokenizer, whole=True)
    assert (whole.ids, whole.start, whole.count) == (row.ids, 1, len(row.ids) - 1)
    assert tokenizer.decode(row.ids[: row.start]) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(row.ids[row.start :]) == "yes<|im_end|>"
    assert row.count == len(row.ids) - row.start


def test_a_phrase_that_many_texts_have_is_one_token_and_a_number_is_digits() -> None:
    texts = [
        f"if x.shape != (batch, {n}):\n    raise Wrong({n})\nreturn kw::op{i}(x)\n"
        for i, n in enumerate((64, 4096, 1000, 250) * 5)
    ]
    tokenizer = tiny.train_tokenizer(texts, 400)
    row = tokenizer.encode(texts[0])
    said = [tokenizer.decode([i]) for i in row]
    assert said[:3] == ["if x.shape != (batch, ", "6", "4"]
    assert "    raise Wrong(" in said
    assert "kw::op0" not in "".join(t for t in said if len(t) > 3)  # one text has it
    assert tokenizer.decode(row) == texts[0]
    unseen = "if x.shape != (batch, 8192):\n"
    ids = tokenizer.encode(unseen)
    assert [tokenizer.decode([i]) for i in ids][1:5] == ["8", "1", "9", "2"]
    assert tokenizer.decode(ids) == unseen


def test_what_follows_an_answer_continues_the_conversation() -> None:
    c = chat()
    user = [{"role": "user", "content": "one"}]
    more = [{"role": "user", "content": "two"}]
    answer = c.encode("yes")
    talk = [*user, {"role": "assistant", "content": "yes"}, *more]
    whole = c.prompt(talk)
    ended = c.between(True, more)
    cut = c.between(False, more)
    assert ended is not None and cut is not None
    assert [*c.prompt(user), *answer, END, *ended] == whole
    assert [*c.prompt(user), *answer, *cut] == whole
    # A template that writes history in another way cannot be continued.
    c.tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    assert c.between(True, more) is None


def test_a_template_that_refuses_is_named() -> None:
    c = chat()
    c.tokenizer.chat_template = "{{ raise_exception('no tools') }}"
    with pytest.raises(BadInput, match="refuses messages of the roles tool"):
        c.prompt([{"role": "tool", "content": "x"}])


class Script:
    """A sampler whose answers are written down."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)
        self.prompts: list[list[int]] = []

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        out = []
        for prompt in prompts:
            self.prompts.append(prompt)
            ids = self.answers.pop(0)
            out.append(Completion(ids, [-1.0] * len(ids), "stop" if END in ids else "length"))
        return out


class Book(Environment):
    """An environment whose turns are written down."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(Client("http://127.0.0.1:9"), 0, lambda _: None)
        self.turns = list(turns)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/episodes":
            return {"id": "e", "messages": [{"role": "user", "content": "go"}]}
        return self.turns.pop(0)


def test_an_episode_appends_and_replaces() -> None:
    c = chat()
    more = [{"role": "user", "content": "more"}]
    fresh = [{"role": "user", "content": "fresh"}]
    script = Script([40, END], [41], [42, END])
    book = Book(
        {"context": "append", "messages": more},
        {"context": "replace", "messages": fresh},
        {"done": True, "reward": 2, "verdict": {"status": "correct"}},
    )
    samples, never = play([("t", {})], book, c, script, Limits(), "v", 0)
    assert never == 0
    first = c.prompt([{"role": "user", "content": "go"}])
    between = c.between(True, more)
    assert between is not None
    assert script.prompts == [first, [*first, 40, END, *between], c.prompt(fresh)]
    assert [s.reward for s in samples] == [None, None, 2]
    assert [s.finish_reason for s in samples] == ["stop", "length", "stop"]
    assert samples[2].verdict == {"status": "correct"}
    rows = rows_of(trajectories.group(samples)[0])
    assert len(rows) == 2
    assert rows[0].mask == [1, 1, *[0] * len(between), 1]


@pytest.mark.parametrize(
    ("limits", "turns", "reasons"),
    [
        (Limits(turns=1), [{"messages": []}], ["limit"]),
        (Limits(tokens=60), [{"messages": [{"role": "user", "content": "x" * 60}]}], ["limit"]),
        (Limits(), [None], ["error"]),
        (Limits(), [{"done": True, "reward": None}], ["error"]),
    ],
)
def test_an_episode_that_does_not_end_by_itself(
    limits: Limits, turns: list[Any], reasons: list[str]
) -> None:
    samples, _ = play([("t", {})], Book(*turns), chat(), Script([40, END]), limits, "v", 0)
    assert [s.finish_reason for s in samples] == reasons
    assert samples[-1].reward is None
