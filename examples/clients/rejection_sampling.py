"""Samples any OpenAI-compatible server, and keeps what earns a reward: docs/episodes.md."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import urllib.request
from typing import Any

KEY, TOKEN = "OPENAI_API_KEY", "KERNELWRIGHT_TRAIN_TOKEN"  # where secrets are, if any


def post(url: str, body: dict[str, Any], secret: str) -> dict[str, Any]:
    key = os.environ.get(secret, "none")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return dict(json.load(answer))


def episode(a: argparse.Namespace, reference: pathlib.Path, seed: int) -> dict[str, Any]:
    task = {"reference": reference.read_text(), "rounds": a.rounds, "seed": seed}
    answer = post(f"{a.server}/v1/episodes", {**task, "name": reference.name}, TOKEN)
    talk, calls = list[Any](), list[Any]()
    while not answer["done"]:
        talk = answer["messages"] if answer["context"] == "replace" else talk + answer["messages"]
        ask = {"model": a.model, "messages": talk, "temperature": 1.0}
        choice = post(f"{a.sampler}/chat/completions", ask, KEY)["choices"][0]
        text = choice["message"]["content"] or ""
        calls += [{"messages": talk, "completion": text}]
        turn = {"call": answer["call"], "text": text, "finish_reason": choice["finish_reason"]}
        answer = post(f"{a.server}/v1/episodes/{answer['id']}/turns", turn, TOKEN)
        talk = [*talk, {"role": "assistant", "content": text}]
    return {"episode": answer["id"], "reward": answer["reward"], "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("references", nargs="+", type=pathlib.Path)
    parser.add_argument("--server", default="http://127.0.0.1:7790", help="`train serve` prints it")
    parser.add_argument("--sampler", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=8, help="of each reference")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--least", type=int, default=1, help="reward: 1 correct, 2 and 3 faster")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("kept.jsonl"))
    a, kept = parser.parse_args(), 0
    with concurrent.futures.ThreadPoolExecutor(32) as pool, a.out.open("w") as out:
        work = [pool.submit(episode, a, r, seed) for r in a.references for seed in range(a.samples)]
        for done in concurrent.futures.as_completed(work):
            if error := done.exception():  # of HTTP's the answer says why
                print(f"lost: {error} {getattr(error, 'read', bytes)().decode()}")
            elif (done.result()["reward"] or -1) >= a.least:  # without one: dropped
                kept += 1
                out.write(json.dumps(done.result()) + "\n")
    print(f"{kept} of {len(work)} kept in {a.out}")


main()
