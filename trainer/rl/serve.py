"""Serves a policy on this machine: OpenAI's chat completions, with token ids and log-probabilities.

python -m rl.serve

Settings are one line of JSON on standard input, which stays open: the server ends when it closes,
and so with its parent. Standard output has one line of JSON when the server listens (``ready``), or
when it cannot (``error``, with the exit codes of the stages). Requests carry the token that the
environment variable KERNELWRIGHT_POLICY_TOKEN has, if it has one. What waits is answered together:
at most ``batch`` requests at a time, each by its own seed, so that no request changes another's
answer. Token ids and log-probabilities stand where vLLM has them; the latter are the model's own,
before temperature and top_p.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from rl import policy
from rl.chat import Chat
from rl.constants import SHARED
from rl.draw import Refused, Work
from rl.errors import BadInput, OutOfMemory, StageError, disk_error, out_of_memory
from rl.generation import generator
from rl.lease import Lease
from rl.settings import Lora, decode, require

TOKEN = SHARED.policy_token_env
MOST_BYTES = 16 << 20  # of a request
ROLES = ("system", "user", "assistant", "tool")
LOCAL = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Settings:
    """``policy``: a folder as rl.policy reads it. ``name``: what it is called in requests. ``port``
    0 is any free one. ``device``: "cpu", "cuda" or "auto"; ``gpu``: which GPU. ``leases``: the
    folder of the devices' leases, empty: none is taken. ``threads`` 0 leaves them to PyTorch.
    ``into``: a folder that the model of ``policy``, then a GGUF file, is written to; nothing is
    served.
    """

    policy: str
    name: str = "policy"
    host: str = "127.0.0.1"
    port: int = 0
    device: str = "auto"
    gpu: int = 0
    leases: str = ""
    batch: int = 16
    threads: int = 0
    into: str = ""


class Engine:
    """A policy that answers what waits, one batch at a time. It has the device while it computes,
    and lets those first who measure on it.
    """

    def __init__(self, settings: Settings) -> None:
        folder = Path(settings.policy).resolve()
        self.batch = max(settings.batch, 1)
        self.tokenizer = policy.load_tokenizer(folder)
        self.model = policy.load_actor(folder, Lora())
        policy.check_fit(self.model, self.tokenizer, folder)
        self.device = _device(settings.device, settings.gpu)
        self.lease = Lease(settings.leases, str(self.device), self._finish)
        self.chat = Chat(self.tokenizer)
        config = policy.unwrapped(self.model).config
        self.context = int(getattr(config, "max_position_embeddings", 0) or 4096)
        self.waiting: deque[Work] = deque()
        self.change = threading.Condition()
        with self.lease.held():
            self.model.to(self.device)
            self.end, pad = int(self.tokenizer.eos_token_id), self.tokenizer.pad_token_id
            pad = self.end if pad is None else int(pad)
            self.generator = generator(self.model, self.batch, pad, _tell)
            # What does not compute is found before anybody asks.
            self.sample([Work(self.chat.prompt([{"role": "user", "content": "a"}])[:8], 1)])

    def submit(self, work: Work) -> None:
        """Puts a request behind those that wait."""
        with self.change:
            self.waiting.append(work)
            self.change.notify()

    def run(self) -> None:
        """Answers for ever."""
        while True:
            with self.change:
                self.change.wait_for(lambda: len(self.waiting) > 0)
                lot = [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]
            lot = [w for w in lot if not w.gone]
            if lot:
                with self.lease.held():
                    self.answer(lot)

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def answer(self, lot: list[Work]) -> None:
        """Answers requests together; where there is too little memory for that, one by one."""
        try:
            self.sample(lot)
        except Exception as error:
            _empty_cache(self.device)
            if out_of_memory(error) and len(lot) > 1:
                for work in lot:
                    work.ids, work.logprobs, work.ended = [], [], False
                    self.answer([work])
                return
            why = "the policy cannot compute the answer"
            if out_of_memory(error):
                why = "there is too little memory for the answer"
            for work in lot:
                work.failed = Refused(503, "failed", f"{why}: {_line(error)}")
        for work in lot:
            work.done.set()

    def sample(self, lot: list[Work]) -> None:
        """Samples the answers of a batch."""
        self.generator.answer(lot, self.end, self.lease.breathe)


def _device(name: str, gpu: int) -> torch.device:
    require(name in ("auto", "cpu", "cuda"), f"device cannot be {name}", "say auto, cpu or cuda")
    there = torch.cuda.is_available()
    require(name != "cuda" or there, "PyTorch finds no GPU here", "set device to cpu or auto")
    if not there or name == "cpu":
        return torch.device("cpu")
    require(gpu < torch.cuda.device_count(), f"PyTorch finds no GPU {gpu} here", "name another gpu")
    return torch.device("cuda", gpu)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def work_of(body: dict[str, Any], engine: Engine, name: str) -> Work:
    """Returns what a request asks for. It raises Refused."""

    def number(key: str, default: float, low: float, high: float) -> float:
        found = body.get(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise Refused(400, "invalid_request_error", f"{key} is no number")
        if not low <= found <= high:
            raise Refused(400, "invalid_request_error", f"{key} is not from {low} to {high}")
        return float(found)

    if body.get("model", name) != name:
        raise Refused(
            404, "model_not_found", f"the model {body['model']} does not exist: {name} is served"
        )
    for key, said in {
        "tools": "this model does not support tools",
        "stream": "answers are not streamed here",
    }.items():
        if body.get(key):
            raise Refused(400, "invalid_request_error", said)
    form = body.get("response_format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") != "text" or number("n", 1, 1, 1) != 1:
        raise Refused(400, "invalid_request_error", "answers are one text, held to no form")
    prompt = engine.chat.prompt(_messages(body.get("messages")))
    room = engine.context - len(prompt)
    if room < 1:
        raise Refused(
            400,
            "context_length_exceeded",
            f"this model's maximum context length is {engine.context} tokens, and there are "
            f"{len(prompt)} input tokens",
        )
    wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    most = room
    if wanted is not None:
        body = {**body, "max_tokens": wanted}
        most = min(room, int(number("max_tokens", room, 1, 1e9)))
    return Work(
        prompt=prompt,
        most=most,
        temperature=number("temperature", 1.0, 0, 2),
        top_p=number("top_p", 1.0, 1e-6, 1),
        seed=int(number("seed", float(secrets.randbits(31)), -(2**63), 2**63)) & 0x7FFFFFFF,
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise Refused(400, "invalid_request_error", "messages is no list with a message in it")
    out = []
    for m in given:
        content = m.get("content") if isinstance(m, dict) else None
        if isinstance(content, list):
            texts = [p.get("text") for p in content if isinstance(p, dict)]
            whole = len(texts) == len(content) and all(isinstance(t, str) for t in texts)
            content = "".join(map(str, texts)) if whole else None
        if not isinstance(m, dict) or m.get("role") not in ROLES or not isinstance(content, str):
            roles = ", ".join(ROLES)
            raise Refused(
                400, "invalid_request_error", f"a message has one of the roles {roles}, and a text"
            )
        out.append({"role": m["role"], "content": content})
    return out


def completion(work: Work, engine: Engine, name: str) -> dict[str, Any]:
    """Returns an answer in OpenAI's form, with what vLLM adds to it."""
    pairs = zip(work.ids, work.logprobs, strict=True)
    content = [{"token": f"token_id:{i}", "logprob": p} for i, p in pairs]
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "prompt_token_ids": work.prompt,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": engine.chat.text(work.ids)},
                "finish_reason": "stop" if work.ended else "length",
                "token_ids": work.ids,
                "logprobs": {"content": content},
            }
        ],
        "usage": {
            "prompt_tokens": len(work.prompt),
            "completion_tokens": len(work.ids),
            "total_tokens": len(work.prompt) + len(work.ids),
        },
    }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 600  # seconds that a connection may rest
    engine: Engine
    name: str
    token: str

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, *_: Any) -> None:
        """Says nothing: prompts are in no log."""

    def _answer(self, of: Any) -> None:
        try:
            status, body = 200, of()
        except Refused as error:
            status = error.status
            body = {"error": {"message": str(error), "code": error.code}}
        except BadInput as error:  # a template that refuses
            status = 400
            body = {"error": {"message": error.reason, "code": "invalid_request_error"}}
        if body is None:  # nobody is there
            self.close_connection = True
            return
        text = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)

    def _get(self) -> Any:
        self._check(self.path != "/health")
        if self.path == "/health":
            return {"status": "ok"}
        if self.path == "/v1/models":
            one = {"id": self.name, "object": "model", "owned_by": "kernelwright"}
            return {"object": "list", "data": [{**one, "max_model_len": self.engine.context}]}
        raise Refused(404, "not_found", "there are /v1/chat/completions, /v1/models and /health")

    def _post(self) -> Any:
        body = self._read()
        self._check(True)
        if self.path != "/v1/chat/completions":
            raise Refused(404, "not_found", "there is nothing to post to but /v1/chat/completions")
        try:
            asked = json.loads(body)
        except ValueError as error:
            raise Refused(400, "invalid_request_error", "the body is no JSON") from error
        if not isinstance(asked, dict):
            raise Refused(400, "invalid_request_error", "the body is no object")
        work = work_of(asked, self.engine, self.name)
        self.engine.submit(work)
        while not work.done.wait(0.25):
            if self._left():
                work.gone = True
                return None
        if work.failed is not None:
            raise work.failed
        return completion(work, self.engine, self.name)

    def _read(self) -> bytes:
        try:
            n = int(self.headers.get("Content-Length", ""))
        except ValueError as error:
            self.close_connection = True
            raise Refused(411, "invalid_request_error", "the request has no length") from error
        if not 0 <= n <= MOST_BYTES:
            self.close_connection = True
            raise Refused(413, "invalid_request_error", f"a request has {MOST_BYTES} bytes at most")
        return self.rfile.read(n)

    def _check(self, signed: bool) -> None:
        """Lets in who is on this machine and has the token: no page of a browser has."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in LOCAL or self.headers.get("Origin"):
            raise Refused(403, "forbidden", "this server answers programs on this machine")
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if (
            signed
            and self.token
            and not secrets.compare_digest(given.encode(), self.token.encode())
        ):
            raise Refused(401, "invalid_api_key", "the token is another one")

    def _left(self) -> bool:
        """Reports whether the other side has gone."""
        try:
            if not select.select([self.connection], [], [], 0)[0]:
                return False
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True


class Server(ThreadingHTTPServer):
    """Listens with room for many connections at once."""

    request_queue_size = 256
    daemon_threads = True


def load(settings: Settings) -> Engine:
    """Returns the policy that settings name. It raises StageError."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        return Engine(settings)
    except StageError as error:
        if out_of_memory(error.__cause__ or error):
            raise _memory(settings, error) from error
        raise
    except Exception as error:
        if out_of_memory(error):
            raise _memory(settings, error) from error
        raise BadInput(
            f"the policy in {settings.policy} does not compute: {_line(error)}",
            "see that its weights, its config.json and its tokenizer belong together",
        ) from error


def _memory(settings: Settings, error: BaseException) -> OutOfMemory:
    return OutOfMemory(
        f"there is too little memory for the policy in {settings.policy}: {_line(error)}",
        "end what else takes memory here, or serve a smaller one",
    )


def serve(engine: Engine, settings: Settings, token: str) -> Server:
    """Returns a server that listens and answers, in threads of its own. It raises BadInput."""
    kind = type("Bound", (Handler,), {"engine": engine, "name": settings.name, "token": token})
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = type("Listening", (Server,), {"address_family": family})
    try:
        server: Server = listening((settings.host, settings.port), kind)
    except OSError as error:
        where = address(settings.host, settings.port)
        raise BadInput(
            f"cannot listen on {where}: {error.strerror}", "name another port"
        ) from error
    threading.Thread(target=engine.run, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address(host: str, port: int) -> str:
    """Returns HOST:PORT, as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def convert(settings: Settings) -> dict[str, Any]:
    """Writes a GGUF file's model as a plain folder."""
    from rl.policy import from_gguf

    try:
        made = from_gguf(Path(settings.policy), Path(settings.into))
    except OSError as error:
        raise disk_error(error, settings.into) from error
    return {"event": "end", "policy": str(made)}


def main() -> int:
    """Serves until standard input closes and returns the exit code of rl's docstring."""
    token = os.environ.pop(TOKEN, "")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stdout = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer

    def say(**line: Any) -> None:
        print(json.dumps(line), file=stdout, flush=True)

    try:
        first = sys.stdin.readline()
        threading.Thread(target=_end_with_parent, daemon=True).start()
        settings = decode(Settings, json.loads(first), "the settings")
        if settings.into:
            say(**convert(settings))
            return 0
        engine = load(settings)
        server = serve(engine, settings, token)
    except StageError as error:
        say(event="error", kind=type(error).__name__, reason=error.reason, hint=error.hint)
        return error.exit_code
    port = server.server_address[1]
    say(event="ready", url=f"http://{address(settings.host, port)}/v1", context=engine.context)
    threading.Event().wait()
    return 0


def _end_with_parent() -> None:
    """Ends this process when whoever started it closes its standard input, or has ended."""
    while os.read(0, 4096):  # by no lock of Python's, which ends while this waits
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
