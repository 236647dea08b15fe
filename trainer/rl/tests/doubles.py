"""What the tests of stages share: tiny policies, and doubles of the episode API and of a sampler's
server. A double speaks the protocol; it judges nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rl import stage, tiny
from rl.settings import decode

CORPUS = ["0123456789", "say it again, and then once more", "a b c d e f g h i j k l m n o p"]


def tiny_policy(folder: Path, parameters: int = 20_000, layers: int = 1, seed: int = 0) -> Path:
    """Makes a policy of bytes alone."""
    tiny.make(folder, CORPUS, parameters, 260, layers, 256, seed)
    return folder


def run(kind: Any, run_it: Any, settings: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Runs a stage in this process and returns its exit code and its lines."""
    lines: list[dict[str, Any]] = []
    found = decode(kind, settings, "settings")
    code = stage.run_stage(found, run_it, lambda line: lines.append(json.loads(line)))
    return code, lines


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    """Returns the lines of one event."""
    return [x for x in lines if x["event"] == event]


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], tuple[int, Any]]) -> Iterator[str]:
    """Serves POSTs: ``answer`` gets path and body and returns status and body. Of a DELETE it gets
    "DELETE" before the path.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(self.path, body)

        def do_DELETE(self) -> None:
            self.reply(f"DELETE {self.path}", {})

        def reply(self, path: str, body: dict[str, Any]) -> None:
            with lock:
                status, said = answer(path, body)
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Toy:
    """Episodes of ``turns`` turns. The reward is the number of digits in all answers, to 3, and -1
    of none; with ``replace`` the context begins anew at each turn.
    """

    def __init__(self, turns: int = 1, context: str = "append") -> None:
        self.turns = turns
        self.context = context
        self.told: dict[str, list[str]] = {}
        self.started = 0
        self.most = 0  # that were open at once
        self.given_up: list[str] = []
        self.fail: Callable[[str, dict[str, Any]], tuple[int, Any] | None] = lambda *_: None

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        failed = self.fail(path, body)
        if failed is not None:
            return failed
        if path.startswith("DELETE "):
            self.given_up.append(path.split("/")[3])
            self.told.pop(self.given_up[-1], None)
            return 200, {}
        if path == "/v1/episodes":
            self.started += 1
            name = f"e{self.started}"
            self.told[name] = []
            self.most = max(self.most, len(self.told))
            return 200, {"id": name, "messages": [{"role": "user", "content": body["reference"]}]}
        name = path.split("/")[3]
        if name not in self.told:
            return 404, {"error": "no such episode"}
        answers = self.told[name]
        answers.append(body["text"])
        if len(answers) < self.turns:
            more = [{"role": "user", "content": "more"}]
            return 200, {"context": self.context, "messages": more, "done": False}
        text = "".join(self.told.pop(name))
        digits = sum(c.isdigit() for c in text)
        reward = float(min(digits, 3)) if digits else -1.0
        status = "correct" if reward > 0 else "wrong"
        verdict = {"status": status, "speedup": {"value": 1.0 + digits, "low": 1.0 + digits / 2}}
        return 200, {"done": True, "reward": reward, "verdict": verdict}
