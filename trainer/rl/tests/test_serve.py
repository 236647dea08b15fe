"""The server of a policy: what it answers is what the model computes, whoever asks beside."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import tiny_policy
from test_gguf import write_gguf

from rl import draw, policy, serve
from rl.errors import BadInput, OutOfMemory
from rl.settings import Lora

TOKEN = "a token of this test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("served") / "policy", layers=2)


@pytest.fixture(scope="module")
def engine(folder: Path) -> serve.Engine:
    return serve.load(serve.Settings(str(folder), batch=4, device="cpu"))


@pytest.fixture(scope="module")
def port(engine: serve.Engine, folder: Path) -> Iterator[int]:
    server = serve.serve(engine, serve.Settings(str(folder), "policy:v7"), TOKEN)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def ask(
    port: int, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    signed = {"Authorization": f"Bearer {TOKEN}", **headers}
    connection.request(method, path, text if method == "POST" else None, signed)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def chat(port: int, text: str = "say it", **more: Any) -> dict[str, Any]:
    body = {"model": "policy:v7", "messages": [{"role": "user", "content": text}], **more}
    status, told = ask(port, "POST", "/v1/chat/completions", body)
    assert status == 200, told
    return told


def tokens(told: dict[str, Any]) -> tuple[list[int], list[int], list[float]]:
    choice = told["choices"][0]
    logs = [c["logprob"] for c in choice["logprobs"]["content"]]
    marked = [f"token_id:{i}" for i in choice["token_ids"]]
    assert marked == [c["token"] for c in choice["logprobs"]["content"]]
    assert told["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert told["usage"]["prompt_tokens"] == len(told["prompt_token_ids"])
    return told["prompt_token_ids"], choice["token_ids"], logs


def test_ids_and_logprobs_are_the_models(port: int, folder: Path) -> None:
    model = policy.load_actor(folder, Lora())
    tokenizer = policy.load_tokenizer(folder)
    with ThreadPoolExecutor(8) as pool:  # of unlike lengths, in batches
        found = list(
            pool.map(
                lambda i: chat(port, "ab " * i, max_tokens=5 + 3 * i, seed=i, temperature=1.3),
                range(8),
            )
        )
    for i, told in enumerate(found):
        prompt, ids, logs = tokens(told)
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": "ab " * i}], tokenize=False, add_generation_prompt=True
        )
        assert prompt == tokenizer(asked, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0].double()
        want = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(
            -1, torch.tensor(ids)[:, None]
        )[:, 0]
        assert torch.allclose(torch.tensor(logs).double(), want, atol=1e-4)
        choice = told["choices"][0]
        ended = ids[-1] == tokenizer.eos_token_id
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert len(ids) == 5 + 3 * i or ended
        text = choice["message"]["content"]
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_seed_gives_the_same_answer_in_any_company(port: int) -> None:
    alone = [tokens(chat(port, "x" * i, seed=i, max_tokens=12)) for i in range(6)]
    with ThreadPoolExecutor(12) as pool:
        many = pool.map(
            lambda i: tokens(chat(port, "x" * (i % 6), seed=i % 6, max_tokens=12)), range(12)
        )
        for i, found in enumerate(many):
            assert found[:2] == alone[i % 6][:2]
    assert len({tuple(tokens(chat(port, max_tokens=12))[1]) for _ in range(6)}) > 1


def test_answers_are_drawn_from_what_the_model_says(engine: serve.Engine) -> None:
    lot = [draw.Work([5, 6, 7], 1, seed=i) for i in range(4000)]
    for begin in range(0, len(lot), 500):
        engine.sample(lot[begin : begin + 500])
    with torch.no_grad():
        p = torch.softmax(engine.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1], -1)
    seen = torch.bincount(torch.tensor([w.ids[0] for w in lot]), minlength=len(p))
    likely = p.topk(20).indices
    expected = p[likely] * len(lot)
    # Pearson's statistic over 20 kinds: beyond 60 in one of 10^6 cases.
    assert ((seen[likely] - expected) ** 2 / expected).sum() < 60


def test_temperature_and_top_p() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    seen: list[set[int]] = [set(), set(), set()]
    for seed in range(60):
        rows = [
            draw.Work([], 1, temperature=0, seed=seed),
            draw.Work([], 1, top_p=0.6, seed=seed),
        ]
        drawn = draw.Draw([*rows, draw.Work([], 1, seed=seed)], end=9)
        only = drawn(torch.empty(0), logits)
        for row, at in zip(seen, only.argmax(-1).tolist(), strict=True):
            row.add(at)
        assert torch.isfinite(only).sum(-1).tolist() == [1, 1, 1]
        # The model's own, whatever was cut.
        assert drawn.rows[1].logprobs[0] == pytest.approx(float(logits[1, drawn.rows[1].ids[0]]))
    assert seen == [{0}, {0, 1}, {0, 1, 2}]


def test_who_is_let_in(port: int) -> None:
    assert ask(port, "GET", "/health", Authorization="") == (200, {"status": "ok"})
    status, told = ask(port, "GET", "/v1/models")
    assert status == 200
    assert told["data"] == [
        {"id": "policy:v7", "object": "model", "owned_by": "kernelwright", "max_model_len": 256}
    ]
    for headers, want in (
        ({"Authorization": "Bearer other"}, 401),
        ({"Authorization": ""}, 401),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Host": "evil.example"}, 403),
    ):
        status, told = ask(port, "POST", "/v1/chat/completions", {}, **headers)
        assert status == want
        assert TOKEN not in json.dumps(told)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python knows no IPv6")
def test_an_address_of_version_6(engine: serve.Engine, folder: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    server = serve.serve(engine, serve.Settings(str(folder), host="::1"), TOKEN)
    where = serve.address("::1", server.server_address[1])
    assert where == f"[::1]:{server.server_address[1]}"
    connection = http.client.HTTPConnection(where, timeout=300)
    try:
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}
    finally:
        connection.close()
        server.shutdown()
        server.server_close()


def test_what_cannot_be_answered(port: int) -> None:
    hello = [{"role": "user", "content": "hello"}]
    for more, status, want in (
        ({"model": "policy:v8"}, 404, "does not exist"),
        ({"messages": []}, 400, "messages is no list"),
        ({"messages": [{"role": "judge", "content": "x"}]}, 400, "one of the roles"),
        ({"messages": [{"role": "user"}]}, 400, "one of the roles"),
        ({"tools": [{"type": "function"}]}, 400, "does not support tools"),
        ({"stream": True}, 400, "not streamed"),
        ({"response_format": {"type": "json_object"}}, 400, "held to no form"),
        ({"n": 2}, 400, "n is not from 1 to 1"),
        ({"temperature": -1}, 400, "temperature is not from 0 to 2"),
        ({"temperature": float("nan")}, 400, "temperature is not"),
        ({"top_p": 0}, 400, "top_p is not"),
        ({"max_tokens": "many"}, 400, "max_tokens is no number"),
        ({"seed": True}, 400, "seed is no number"),
        (
            {"messages": [{"role": "user", "content": "x" * 400}]},
            400,
            "maximum context length is 256 tokens",
        ),
    ):
        found, told = ask(port, "POST", "/v1/chat/completions", {"messages": hello, **more})
        assert (found, want in told["error"]["message"]) == (status, True), told
    for path, body, status in (
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/other", b"{}", 404),
    ):
        assert ask(port, "POST", path, body)[0] == status
    assert ask(port, "GET", "/v2")[0] == 404
    parts = [{"type": "text", "text": "say"}, {"type": "text", "text": " it"}]
    found, told = ask(
        port,
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": parts}], "seed": 1, "max_completion_tokens": 3},
    )
    assert found == 200 and tokens(told)[1] == tokens(chat(port, seed=1, max_tokens=3))[1]


def test_nothing_is_computed_for_who_has_gone(engine: serve.Engine, port: int) -> None:
    held = threading.Lock()
    real = engine.sample
    taken, gone = [], threading.Event()

    def slow(lot: list[draw.Work]) -> None:
        taken.extend(lot)
        with held:
            real(lot)
        if any(w.gone for w in lot):
            gone.set()

    engine.sample = slow  # type: ignore[method-assign]
    try:
        held.acquire()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 200}
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"}
        )
        while not taken:
            threading.Event().wait(0.01)
        connection.close()
        while not taken[0].gone:
            threading.Event().wait(0.01)
        held.release()
        assert gone.wait(300) and len(taken[0].ids) <= 1
        assert len(tokens(chat(port, max_tokens=2, seed=1))[1]) <= 2
    finally:
        engine.sample = real  # type: ignore[method-assign]


def test_too_little_memory_for_a_batch(engine: serve.Engine) -> None:
    real = engine.sample

    def short(lot: list[draw.Work]) -> None:
        if len(lot) > 1 or lot[0].most > 50:
            raise torch.OutOfMemoryError("tried to allocate 7 GiB")
        real(lot)

    engine.sample = short  # type: ignore[method-assign]
    try:
        lot = [draw.Work([3, 4], most, seed=1) for most in (2, 3, 60)]
        engine.answer(lot)
    finally:
        engine.sample = real  # type: ignore[method-assign]
    assert all(w.done.is_set() for w in lot)
    assert [w.failed is None for w in lot] == [True, True, False]
    assert lot[2].failed is not None and "too little memory" in str(lot[2].failed)


def test_broken_folders(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(change: Any) -> Any:
        broken = tmp_path / str(len(list(tmp_path.iterdir())))
        broken.mkdir()
        for f in folder.iterdir():
            (broken / f.name).write_bytes(f.read_bytes())
        change(broken)
        with pytest.raises(BadInput) as error:
            serve.load(serve.Settings(str(broken), device="cpu"))
        assert str(broken) in error.value.reason and error.value.hint
        return error.value.reason

    def cut(f: Path) -> None:
        f.write_bytes(f.read_bytes()[:-40])

    def config(at: Path, **more: Any) -> None:
        told = json.loads((at / "config.json").read_text())
        (at / "config.json").write_text(json.dumps({**told, **more}))

    assert "cannot be loaded" in load(lambda at: cut(at / "model.safetensors"))
    assert "holds no tokenizer" in load(lambda at: cut(at / "tokenizer.json"))
    assert "tokenizer does not fit" in load(
        lambda at: (
            tiny_policy(at, layers=2)
            and (at / "tokenizer.json").write_text(more_tokens(at / "tokenizer.json"))
        )
    )
    assert "cannot be loaded" in load(lambda at: config(at, model_type="nothing"))

    def short(*_: Any) -> None:
        raise MemoryError("cannot allocate 9 GB")

    monkeypatch.setattr(policy, "load_actor", short)
    with pytest.raises(OutOfMemory, match="too little memory for the policy in"):
        serve.load(serve.Settings(str(folder), device="cpu"))


def more_tokens(path: Path) -> str:
    told = json.loads(path.read_text())
    last = max(told["model"]["vocab"].values())
    for i in range(5):
        new = dict(told["added_tokens"][0])
        told["added_tokens"].append({**new, "id": last + 1 + i, "content": f"<more {i}>"})
    return json.dumps(told)


def test_an_adapters_base_lies_within_its_folder(folder: Path, tmp_path: Path) -> None:
    from rl.policy import load_actor, save

    made = tmp_path / "adapter"
    save(load_actor(folder, Lora(rank=2), seed=1), None, made)
    told = json.loads((made / "adapter_config.json").read_text())
    (made / "base").mkdir()
    for f in folder.iterdir():
        (made / "base" / f.name).write_bytes(f.read_bytes())
    (made / "adapter_config.json").write_text(
        json.dumps({**told, "base_model_name_or_path": "base"})
    )
    loaded = serve.load(serve.Settings(str(made), device="cpu"))
    work = draw.Work(loaded.chat.prompt([{"role": "user", "content": "a"}]), 3, seed=1)
    loaded.sample([work])
    assert len(work.ids) > 0


def test_a_gguf_file_becomes_a_folder(folder: Path, tmp_path: Path) -> None:
    write_gguf(folder, tmp_path / "small.gguf")
    settings = serve.Settings(str(tmp_path / "small.gguf"), into=str(tmp_path / "plain"))
    told = serve.convert(settings)
    loaded = serve.load(serve.Settings(told["policy"], device="cpu"))
    work = draw.Work(loaded.chat.prompt([{"role": "user", "content": "a"}]), 3, seed=1)
    loaded.sample([work])
    assert len(work.ids) > 0 and loaded.context == 256
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(BadInput, match="cannot be read as GGUF"):
        serve.convert(serve.Settings(str(tmp_path / "page.gguf"), into=str(tmp_path / "other")))


def test_the_program_says_what_is_wrong(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    program = subprocess.Popen(
        [sys.executable, "-m", "rl.serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    print(json.dumps({"policy": str(tmp_path / "none")}), file=program.stdin, flush=True)
    told = json.loads(program.stdout.readline())
    assert told["event"] == "error" and "holds no tokenizer" in told["reason"]
    assert program.wait() == 2
    program.stdin.close()
    program.stdout.close()
