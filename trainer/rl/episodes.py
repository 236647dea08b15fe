"""A client of the episode API, and episodes that a policy plays through it.

``POST /v1/episodes`` starts one and gives the first messages; ``POST /v1/episodes/{id}/turns``
takes a completion and gives the next messages, with ``context``: ``append`` (they follow the
answer) or ``replace`` (they are all that is left); at the end ``done``, ``reward``, ``verdict`` and
``stop``. A reward of null is an infrastructure error. ``DELETE /v1/episodes/{id}`` gives one up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl.chat import Chat, Message
from rl.errors import BadInput, Unreachable
from rl.http import Client, HTTPError
from rl.sampler import Completion
from rl.trajectories import Sample

PAUSE_S = 0.5  # before a request is tried again; twice as long each time
LONGEST_PAUSE_S = 30.0
GIVE_UP_S = 10.0  # that a DELETE may take
OUT_OF_TURNS = "turns"  # the environment's reason to stop: its own limit of turns


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
    stop: str = ""


class Environment:
    """The episode API of a server. ``patience``: how many seconds are spent in pauses between the
    tries of one request. How long the server works on a try does not count.
    """

    def __init__(self, client: Client, patience: float, note: Callable[[str], None]) -> None:
        self.client = client
        self.patience = patience
        self.note = note

    def start(self, body: dict[str, Any]) -> tuple[str, list[Message]] | None:
        """Returns id and first messages of a new episode, None where the server refuses it or its
        machinery fails. Tools are called in the text.
        """
        answer = self._ask("/v1/episodes", {"tools": "text", **body})
        if answer is None:
            return None
        try:
            name, messages = str(answer["id"]), list(answer["messages"])
        except (KeyError, TypeError) as error:
            raise self._strange("/v1/episodes", error) from error
        self._text_alone(name, answer)
        return name, messages

    def give_up(self, episode: str) -> None:
        """Tells the server that an episode is not gone on with; without it, the episode expires."""
        try:
            self.client.delete(f"/v1/episodes/{episode}", GIVE_UP_S)
        except HTTPError:
            pass  # it is over, or expires

    def turn(
        self, episode: str, call: int, text: str, prompt: list[int], version: str, done: Completion
    ) -> Turn | None:
        """Returns what follows a completion of a prompt by a policy's version, None where the
        server knows the episode no more.
        """
        path = f"/v1/episodes/{episode}/turns"
        body = {
            "text": text,
            "call": call,
            "policy_version": version,
            "prompt_ids": prompt,
            "token_ids": done.ids,
            "logprobs": done.logprobs,
            "finish_reason": done.finish_reason,
        }
        answer = self._ask(path, body)
        if answer is None:
            return None
        try:
            self._text_alone(episode, answer)
            reward = answer.get("reward")
            return Turn(
                list(answer.get("messages") or []),
                str(answer.get("context") or "append"),
                bool(answer.get("done")),
                None if reward is None else float(reward),
                answer.get("verdict"),
                bool(answer.get("invalid")),
                str(answer.get("stop") or ""),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise self._strange(path, error) from error

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Posts, again while the server does not answer. Returns None of what it refuses, and of
        what its machinery failed at.
        """
        left, pause = self.patience, PAUSE_S
        while True:
            try:
                return self.client.post(path, body)
            except HTTPError as error:
                if error.infrastructure:
                    self.note(f"the environment's machinery failed: {error}")
                    return None
                if 400 <= error.status < 500 and error.status not in (401, 403, 429):
                    self.note(f"the environment refuses: {error}")
                    return None
                if error.status in (401, 403) or left <= 0:
                    raise Unreachable(
                        f"the environment at {self.client.url} failed: {error}",
                        "see that it runs and start the stage again: it goes on from its last "
                        "checkpoint",
                    ) from error
                wait = min(max(pause, error.retry_after), left)
            time.sleep(wait)
            left -= wait
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _text_alone(self, episode: str, answer: dict[str, Any]) -> None:
        """Raises BadInput of an answer with native tools, after it gave up the episode."""
        if answer.get("tools"):
            self.give_up(episode)
            raise BadInput(
                f"the environment at {self.client.url} asks for native tools, which need a "
                "parser of each model's own",
                'set "tools" to "text" in environment.request and in the tasks\' requests',
            )

    def _strange(self, path: str, error: Exception) -> Unreachable:
        return Unreachable(
            f"{path} of {self.client.url} answers what is not the episode API: {error!r}",
            "name a server of the episode API",
        )


@dataclass
class Play:
    """An episode that is under way, for the job of a number. ``ids``: the next prompt; ``talk``:
    its messages.
    """

    job: int
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
        """Ends it before the environment did: "limit", or "error" of the infrastructure. Where
        the first prompt has no room, a call without a token says so: that is the policy's own.
        """
        self.over = True
        if reason == "limit" and not self.samples:
            self.add(Completion([], [], reason))
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
    """Plays an episode for each job, a task's name and the request that starts it. At most
    ``parallel`` are open; they advance together, a turn at a time, and where one ends the next
    begins. Returns samples by job and call, and how many never began.
    """
    plays: list[Play] = []

    def begin(job: int) -> None:
        task, body = jobs[job]
        got = environment.start(body)
        if got is not None:
            opened = Play(job, task, *got, [], version)
            plays.append(opened)
            opened.ids = chat.prompt(opened.talk)

    begun = made = 0
    try:
        with ThreadPoolExecutor(parallel) as pool:
            while begun < len(jobs) or not all(p.over for p in plays):
                room = parallel - sum(not p.over for p in plays)
                coming = range(begun, min(begun + room, len(jobs)))
                begun += len(coming)
                list(pool.map(begin, coming))
                live = sorted((p for p in plays if not p.over), key=lambda p: p.job)
                live = _within(live, limits, environment, pool)
                if not live:
                    continue
                done = sampler.sample([p.ids for p in live], seed + made)
                made += len(live)
                list(pool.map(lambda p, c: _advance(p, c, environment, chat), live, done))
    finally:  # after an error, when all that was under way has ended
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(environment.give_up, [p.name for p in plays if not p.over]))
    plays.sort(key=lambda p: p.job)
    never = len(jobs) - sum(bool(p.samples) for p in plays)
    return [s for p in plays for s in p.samples], never


def _within(
    live: list[Play], limits: Limits, environment: Environment, pool: ThreadPoolExecutor
) -> list[Play]:
    """Ends the episodes that have reached a limit and returns the others."""
    cut = [p for p in live if 0 < limits.turns <= len(p.samples) or 0 < limits.tokens <= len(p.ids)]
    for p in cut:
        p.end("limit")
    list(pool.map(environment.give_up, [p.name for p in cut]))
    return [p for p in live if not p.over]


def _advance(p: Play, completion: Completion, environment: Environment, chat: Chat) -> None:
    if not completion.ids:  # the prompt left no room
        p.end("limit")
        environment.give_up(p.name)
        return
    sample = p.add(completion)
    text = chat.text(completion.ids)
    began = time.monotonic()
    turn = environment.turn(p.name, sample.call, text, p.ids, p.version, completion)
    sample.seconds = time.monotonic() - began
    if turn is None:
        p.end("error")
        environment.give_up(p.name)
        return
    sample.invalid, sample.verdict = turn.invalid, turn.verdict
    if turn.done:
        p.over = True
        sample.reward = turn.reward
        if turn.reward is None:
            sample.finish_reason = "error"
        elif turn.stop == OUT_OF_TURNS:
            sample.finish_reason = "limit"
        return
    p.go_on(chat, text, completion.finish_reason == "stop", turn)
