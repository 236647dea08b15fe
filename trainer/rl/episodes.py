"""A client of the episode API, and episodes that a policy plays through it.

``POST /v1/episodes`` starts one and gives the first messages; ``POST /v1/episodes/{id}/turns``
takes a completion and gives the next messages, with ``context``: ``append`` (they follow the
answer) or ``replace`` (they are all that is left); at the end ``done``, ``reward`` and ``verdict``.
A reward of null is an infrastructure error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl.chat import Chat, Message
from rl.errors import Unreachable
from rl.http import Client, HTTPError
from rl.sampler import Completion
from rl.trajectories import Sample

PAUSE_S = 0.5  # before a request is tried again; twice as long each time


class Sampler(Protocol):
    """What gives completions: see sampler.py."""

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        """Returns a completion of each prompt."""


@dataclass
class Turn:
    """What the environment answers."""

    messages: list[Message]
    context: str = "append"
    done: bool = False
    reward: float | None = None
    verdict: dict[str, Any] | None = None
    invalid: bool = False


class Environment:
    """The episode API of a server. ``patience`` is how many seconds a server that does not answer
    is waited for.
    """

    def __init__(self, client: Client, patience: float, note: Callable[[str], None]) -> None:
        self.client = client
        self.patience = patience
        self.note = note

    def start(self, body: dict[str, Any]) -> tuple[str, list[Message]] | None:
        """Returns id and first messages of a new episode, None where the server refuses it."""
        answer = self._ask("/v1/episodes", body)
        if answer is None:
            return None
        try:
            return str(answer["id"]), list(answer["messages"])
        except (KeyError, TypeError) as error:
            raise self._strange("/v1/episodes", error) from error

    def turn(self, episode: str, call: int, text: str, done: Completion) -> Turn | None:
        """Returns what follows a completion, None where the server knows the episode no more."""
        path = f"/v1/episodes/{episode}/turns"
        body = {
            "text": text,
            "call": call,
            "token_ids": done.ids,
            "logprobs": done.logprobs,
            "finish_reason": done.finish_reason,
        }
        answer = self._ask(path, body)
        if answer is None:
            return None
        try:
            reward = answer.get("reward")
            return Turn(
                list(answer.get("messages") or []),
                str(answer.get("context") or "append"),
                bool(answer.get("done")),
                None if reward is None else float(reward),
                answer.get("verdict"),
                bool(answer.get("invalid")),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise self._strange(path, error) from error

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Posts, again while the server does not answer. Returns None of what it refuses."""
        end, pause = time.monotonic() + self.patience, PAUSE_S
        while True:
            try:
                return self.client.post(path, body)
            except HTTPError as error:
                if 400 <= error.status < 500 and error.status not in (401, 403, 429):
                    self.note(f"the environment refuses: {error}")
                    return None
                if error.status in (401, 403) or time.monotonic() + pause > end:
                    raise Unreachable(
                        f"the environment at {self.client.url} failed: {error}",
                        "see that it runs and start the stage again: it goes on from its last "
                        "checkpoint",
                    ) from error
            time.sleep(pause)
            pause *= 2

    def _strange(self, path: str, error: Exception) -> Unreachable:
        return Unreachable(
            f"{path} of {self.client.url} answers what is not the episode API: {error!r}",
            "name a server of the episode API",
        )


@dataclass
class Play:
    """An episode that is under way. ``ids``: the next prompt; ``talk``: its messages."""

    task: str
    name: str
    talk: list[Message]
    ids: list[int]
    version: str
    samples: list[Sample] = field(default_factory=list)
    over: bool = False

    def add(self, completion: Completion) -> Sample:
        """Notes a call of the model."""
        n = len(completion.ids)
        sample = Sample(
            self.name,
            len(self.samples),
            self.ids,
            completion.ids,
            [1] * n,
            completion.logprobs,
            None,
            completion.finish_reason,
            self.version,
            self.task,
        )
        self.samples.append(sample)
        return sample

    def end(self, reason: str) -> None:
        """Ends it before the environment did: "limit", or "error" of the infrastructure."""
        self.over = True
        if self.samples:
            self.samples[-1].finish_reason = reason

    def go_on(self, chat: Chat, text: str, ended: bool, turn: Turn) -> None:
        """Makes the next prompt."""
        last = self.samples[-1]
        self.talk = [*self.talk, {"role": "assistant", "content": text}, *turn.messages]
        if turn.context == "replace":
            self.talk = turn.messages
        between = chat.between(ended, turn.messages) if turn.context == "append" else None
        if between is None:
            self.ids = chat.prompt(self.talk)
        else:
            self.ids = last.prompt_ids + last.response_ids + between


@dataclass(frozen=True)
class Limits:
    """``turns`` an episode may take here; ``tokens`` a prompt may have. 0 is no limit."""

    turns: int = 200
    tokens: int = 0


def play(
    jobs: Sequence[tuple[str, dict[str, Any]]],
    environment: Environment,
    chat: Chat,
    sampler: Sampler,
    limits: Limits,
    version: str,
    seed: int,
    parallel: int = 64,
) -> tuple[list[Sample], int]:
    """Plays an episode for each job, a task's name and the request that starts it. All advance
    together, a turn at a time. Returns samples by job and call, and how many never began.
    """
    with ThreadPoolExecutor(parallel) as pool:
        began = list(pool.map(lambda job: environment.start(job[1]), jobs))
        plays = [
            Play(task, got[0], got[1], chat.prompt(got[1]), version)
            for (task, _), got in zip(jobs, began, strict=True)
            if got is not None
        ]
        turn = 0
        while live := [p for p in plays if not p.over]:
            for p in live:
                if 0 < limits.turns <= turn or 0 < limits.tokens <= len(p.ids):
                    p.end("limit")
            live = [p for p in live if not p.over]
            done = sampler.sample([p.ids for p in live], seed + turn)
            list(pool.map(lambda p, c: _advance(p, c, environment, chat), live, done))
            turn += 1
    never = sum(got is None for got in began) + sum(not p.samples for p in plays)
    return [s for p in plays for s in p.samples], never


def _advance(p: Play, completion: Completion, environment: Environment, chat: Chat) -> None:
    if not completion.ids:  # the prompt left no room
        p.end("limit")
        return
    sample = p.add(completion)
    text = chat.text(completion.ids)
    began = time.monotonic()
    turn = environment.turn(p.name, sample.call, text, completion)
    sample.seconds = time.monotonic() - began
    if turn is None:
        p.end("error")
        return
    sample.invalid, sample.verdict = turn.invalid, turn.verdict
    if turn.done:
        p.over = True
        sample.reward = turn.reward
        if turn.reward is None:
            sample.finish_reason = "error"
        return
    p.go_on(chat, text, completion.finish_reason == "stop", turn)
