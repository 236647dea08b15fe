"""The client of the episode API: what is posted, waited for, given up and counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from doubles import CORPUS, Toy, of, run, serving, tiny_policy

from rl import episodes, ppo, tiny, trajectories
from rl.chat import Chat
from rl.episodes import Environment, Limits, play
from rl.errors import BadInput, Unreachable
from rl.http import Client, HTTPError
from rl.sampler import Completion
from rl.trajectories import Sample

END = 2  # the end-of-text id of a tiny tokenizer


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(tiny.train_tokenizer(CORPUS, 260))


class Same:
    """A sampler with one answer. It notes the prompts and seeds that it is asked for."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.seeds: list[int] = []

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        self.prompts += prompts
        self.seeds += range(seed, seed + len(prompts))
        return [Completion([40, END], [-1.0, -2.0], "stop") for _ in prompts]


def jobs(n: int, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(f"t{i}", {"reference": "x", **more}) for i in range(n)]


@contextmanager
def noting(toy: Toy) -> Iterator[tuple[Environment, list[tuple[str, dict[str, Any]]], list[str]]]:
    """Gives an environment that waits for nothing, what it was asked, and its notes."""
    asked: list[tuple[str, dict[str, Any]]] = []
    notes: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append((path, body))
        return toy(path, body)

    with serving(answer) as url:
        yield Environment(Client(url), 0, notes.append), asked, notes


def test_what_is_posted(chat: Chat) -> None:
    sampler = Same()
    with noting(Toy()) as (environment, asked, _):
        play(jobs(1, rounds=3), environment, chat, sampler, Limits(), "p-7", 0)
    [(start, begun), (turn, said)] = asked
    assert (start, begun) == ("/v1/episodes", {"tools": "text", "reference": "x", "rounds": 3})
    assert turn == "/v1/episodes/e1/turns"
    assert (said["prompt_ids"], said["token_ids"]) == (sampler.prompts[0], [40, END])
    assert (said["policy_version"], said["call"], said["logprobs"]) == ("p-7", 0, [-1.0, -2.0])


@pytest.mark.parametrize("where", ["/v1/episodes", "/v1/episodes/e1/turns"])
def test_native_tools_are_refused_and_the_episode_is_given_up(chat: Chat, where: str) -> None:
    toy = Toy(2)
    with noting(toy) as (environment, _, _):

        def native(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
            if path != where:
                return None
            return 200, {**toy_of(path, body), "tools": [{"type": "function"}]}

        def toy_of(path: str, body: dict[str, Any]) -> dict[str, Any]:
            toy.fail = lambda *_: None
            return dict(toy(path, body)[1])

        toy.fail = native
        with pytest.raises(BadInput, match="asks for native tools"):
            play(jobs(1, tools="native"), environment, chat, Same(), Limits(), "v", 0)
    assert set(toy.given_up) == {"e1"}


def test_no_more_episodes_are_open_than_may_be(chat: Chat) -> None:
    toy, sampler = Toy(2), Same()
    with noting(toy) as (environment, _, _):
        samples, never = play(jobs(7), environment, chat, sampler, Limits(), "v", 100, 3)
    assert (toy.most, toy.started, never) == (3, 7, 0)
    assert [(s.task, s.call) for s in samples] == [(f"t{i}", c) for i in range(7) for c in (0, 1)]
    assert len(set(sampler.seeds)) == len(sampler.seeds) == 14
    assert not toy.given_up


def test_a_start_that_the_machinery_fails_at_is_counted_and_not_tried_again(chat: Chat) -> None:
    toy = Toy()
    with noting(toy) as (environment, asked, notes):
        said = {"error": "no compiler", "infrastructure": True}
        toy.fail = lambda _, body: (502, said) if body.get("name") == "bad" else None
        given = [*jobs(1), ("bad", {"reference": "x", "name": "bad"}), *jobs(1)]
        samples, never = play(given, environment, chat, Same(), Limits(), "v", 0)
    assert (len(samples), never) == (2, 1)
    assert len([b for _, b in asked if b.get("name") == "bad"]) == 1
    assert "no compiler" in notes[0]


def test_what_is_cut_here_is_given_up(chat: Chat) -> None:
    toy = Toy(5)
    with noting(toy) as (environment, _, _):
        samples, _ = play(jobs(2), environment, chat, Same(), Limits(turns=2), "v", 0)
    assert [s.finish_reason for s in samples] == ["stop", "limit"] * 2
    assert sorted(toy.given_up) == ["e1", "e2"]


def test_what_is_open_when_the_sampler_fails_is_given_up(chat: Chat) -> None:
    class Dead(Same):
        def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
            raise Unreachable("gone")

    toy = Toy()
    with noting(toy) as (environment, _, _), pytest.raises(Unreachable, match="gone"):
        play(jobs(5), environment, chat, Dead(), Limits(), "v", 0, 3)
    assert sorted(toy.given_up) == ["e1", "e2", "e3"]


def test_out_of_the_environments_turns_is_a_cut_with_a_reward(chat: Chat) -> None:
    toy = Toy()
    end = {"done": True, "reward": 1, "stop": "turns"}
    with noting(toy) as (environment, _, _):
        toy.fail = lambda path, _: (200, end) if path.endswith("/turns") else None
        [sample], _ = play(jobs(1), environment, chat, Same(), Limits(), "v", 0)
    assert (sample.reward, sample.finish_reason) == (1.0, "limit")


class Failing(Client):
    """A client whose requests take a minute and fail, but for the last."""

    def __init__(self, failures: list[HTTPError], clock: Callable[[float], None]) -> None:
        super().__init__("http://127.0.0.1:9")
        self.failures = failures
        self.clock = clock

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.clock(60.0)
        if self.failures:
            raise self.failures.pop(0)
        return {"id": 1, "messages": []}


@pytest.mark.parametrize(
    ("patience", "failures", "pauses"),
    [
        # What a try takes does not count.
        (4.0, [HTTPError("gone")] * 3, [0.5, 1.0, 2.0]),
        # The last pause is as long as there is patience for, and another try follows it.
        (2.0, [HTTPError("gone")] * 3, [0.5, 1.0, 0.5]),
        (20.0, [HTTPError("full", 503, retry_after=5.0)] * 2, [5.0, 5.0]),
    ],
)
def test_how_long_is_waited(
    monkeypatch: pytest.MonkeyPatch, patience: float, failures: list[HTTPError], pauses: list[float]
) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(episodes.time, "sleep", sleep)
    monkeypatch.setattr(episodes.time, "monotonic", lambda: now[0])
    client = Failing(list(failures), work)
    assert Environment(client, patience, lambda _: None).start({}) == ("1", [])
    assert slept == pauses
    client.failures = [HTTPError("gone")] * 100
    with pytest.raises(Unreachable, match="gone"):
        Environment(client, patience, lambda _: None).start({})


def test_an_answer_that_breaks_off_is_an_error_like_others() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.1 503 Full\r\nRetry-After: 7\r\n")
            self.wfile.write(b"Transfer-Encoding: chunked\r\n\r\n63\r\nfu")  # 99 bytes, says it

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(HTTPError) as found:
            Client(f"http://127.0.0.1:{server.server_port}").post("/v1/episodes", {})
        thread.join()
    assert (found.value.status, found.value.retry_after) == (503, 7.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base", 8_000)


def of_ppo(folder: Path, base: Path, url: str) -> dict[str, Any]:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("\n".join(json.dumps({"id": c, "code": c}) for c in "ab"))
    return {
        "policy": str(base),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "patience": 0},
        "sampling": {"tokens": 4},
        "steps": 1,
        "tasks_per_step": 2,
        "samples_per_task": 2,
        "machine": {"device": "cpu", "threads": 1},
        "saving": {"every": 100, "tensorboard": False},
        "bounds": {"kl_skip": 0, "kl_high": 0},
    }


def test_a_step_that_lost_all_is_sampled_again(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    lost = {"done": True, "reward": None}
    with serving(toy) as url:
        given = of_ppo(tmp_path, base, url)
        toy.fail = lambda path, _: (200, lost) if path.endswith("/turns") else None
        code, lines = run(ppo.Settings, ppo.run, given)
        assert code == 4
        assert not list((tmp_path / "out").glob("trajectories/*"))
        # Nor is such a file accepted, should an earlier program have written one.
        dead = Sample("e1", 0, [5], [6], [1], [-1.0], None, "error", "policy-0")
        path = tmp_path / "out" / "trajectories" / "step-00000001-0of1.parquet"
        trajectories.write(path, [dead])
        toy.fail = lambda *_: None
        code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 0, lines[-1]


def test_what_never_began_is_counted_after_a_restart(tmp_path: Path, base: Path) -> None:
    toy = Toy()
    said = {"error": "no compiler", "infrastructure": True}

    def fail(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        return (502, said) if path == "/v1/episodes" and body["reference"] == "a" else None

    with serving(toy) as url:
        given = of_ppo(tmp_path, base, url)
        given["bounds"] = {"kl_skip": 0, "entropy_high": 0.1, "patience": 1}  # ends it in the step
        toy.fail = fail
        rates = []
        for _ in range(2):
            code, lines = run(ppo.Settings, ppo.run, given)
            assert code == 3, lines[-1]
            rates.append(of(lines, "step")[0]["metrics"]["infrastructure_rate"])
    assert rates == [0.5, 0.5]
    assert toy.started == 2


@pytest.mark.parametrize(
    ("held", "said"),
    [("s3cret\nvalue", "holds what no token has"), ("s3cr\u00e9t", "holds what no token has")],
)
def test_a_token_that_cannot_be_sent_is_not_told(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, held: str, said: str
) -> None:
    monkeypatch.setenv("KW_TEST_TOKEN", held)
    given = of_ppo(tmp_path, base, "http://127.0.0.1:9")
    given["environment"] |= {"token_env": "KW_TEST_TOKEN"}
    code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 2
    assert said in lines[-1]["reason"]
    assert "s3cr" not in json.dumps(lines)
    monkeypatch.setenv("KW_TEST_TOKEN", " good\n")
    assert ppo.token("KW_TEST_TOKEN") == "good"


def test_a_name_that_the_server_refuses_is_named(tmp_path: Path, base: Path) -> None:
    given = of_ppo(tmp_path, base, "http://127.0.0.1:9") | {"name": "my@policy"}
    code, lines = run(ppo.Settings, ppo.run, given)
    assert code == 2
    assert "name is 'my@policy'" in lines[-1]["reason"]
