"""Samples any OpenAI-compatible server, and keeps what earns a reward: docs/episodes.md."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import urllib.request
from typing import Any

MODEL_KEY, TOKEN = os.environ.get("OPENAI_API_KEY"), os.environ.get("KERNELWRIGHT_TRAIN_TOKEN")


def post(url: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return dict(json.load(answer))


def episode(a: argparse.Namespace, reference: pathlib.Path, seed: int) -> dict[str, Any]:
    task = {"reference": reference.read_text(), "name": reference.name, "rounds": a.rounds}
    answer = post(f"{a.server}/v1/episodes", {**task, "seed": seed}, TOKEN)
    talk: list[dict[str, Any]] = []
    calls = []
    while not answer["done"]:
        talk = answer["messages"] if answer["context"] == "replace" else talk + answer["messages"]
        ask = {"model": a.model, "messages": talk, "temperature": 1.0}
        choice = post(f"{a.sampler}/chat/completions", ask, MODEL_KEY)["choices"][0]
        text = choice["message"]["content"] or ""
        calls.append({"messages": talk, "completion": text})
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
    a = parser.parse_args()
    work = [(a, reference, seed) for reference in a.references for seed in range(a.samples)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        done = list(pool.map(lambda w: episode(*w), work))
    kept = [e for e in done if (e["reward"] or -1) >= a.least]  # without a reward: dropped
    a.out.write_text("".join(json.dumps(e) + "\n" for e in kept))
    print(f"{len(kept)} of {len(done)} kept in {a.out}")


main()
