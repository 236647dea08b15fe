"""Samples candidates from any OpenAI-compatible server, and keeps those with a reward: docs/episodes.md."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import urllib.request
from typing import Any


def post(url: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return dict(json.load(answer))


def complete(a: argparse.Namespace, talk: list[dict[str, Any]], seed: int) -> tuple[str, str]:
    body = {"model": a.model, "messages": talk, "temperature": 1.0, "seed": seed}
    choice = post(f"{a.sampler}/chat/completions", body, os.environ.get("OPENAI_API_KEY"))["choices"][0]
    return choice["message"]["content"] or "", choice["finish_reason"]


def episode(a: argparse.Namespace, reference: pathlib.Path, seed: int) -> dict[str, Any]:
    token = os.environ.get("KERNELWRIGHT_TRAIN_TOKEN")
    task = {"reference": reference.read_text(), "name": reference.name, "rounds": a.rounds, "seed": seed}
    answer = post(f"{a.server}/v1/episodes", task, token)
    talk: list[dict[str, Any]] = []
    calls = []
    while not answer["done"]:
        talk = answer["messages"] if answer["context"] == "replace" else talk + answer["messages"]
        text, finish = complete(a, talk, 1000 * seed + answer["call"])
        calls.append({"messages": talk, "completion": text})
        turn = {"call": answer["call"], "text": text, "finish_reason": finish}
        answer = post(f"{a.server}/v1/episodes/{answer['id']}/turns", turn, token)
        talk = [*talk, {"role": "assistant", "content": text}]
    return {"episode": answer["id"], "task": reference.name, "reward": answer["reward"], "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("references", nargs="+", type=pathlib.Path)
    parser.add_argument("--server", default="http://127.0.0.1:7790", help="what `kernelwright train serve` printed")
    parser.add_argument("--sampler", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=8, help="of each reference")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--least", type=int, default=1, help="the reward that is kept: 1 correct, 2 and 3 faster")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("kept.jsonl"))
    a = parser.parse_args()
    work = [(a, reference, seed) for reference in a.references for seed in range(a.samples)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        done = list(pool.map(lambda w: episode(*w), work))
    kept = [e for e in done if e["reward"] is not None and e["reward"] >= a.least]  # None: dropped, not scored
    a.out.write_text("".join(json.dumps(e) + "\n" for e in kept))
    print(f"{len(kept)} of {len(done)} kept in {a.out}: rewards {sorted(e['reward'] or 0 for e in done)}")


main()
