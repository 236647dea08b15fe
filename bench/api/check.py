#!/usr/bin/env python3
"""Tries the HTTP API with tools that were made for that, against a real daemon.

Clients in Python (openapi-python-client) and Go (oapi-codegen) are generated of the document that
the daemon serves, and submit, hold, list and listen. Prometheus' own linter reads the metrics.
schemathesis makes requests of the document, and holds each answer to it. What is installed and
made lies in a folder of its own. docs/api.md has what came of it.

    bench/api/check.py --python PYTHON [--requests 20000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON_TOOLS = ("openapi-python-client==0.29.1", "schemathesis==4.32.5")
OAPI_CODEGEN = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
GO_MODULES = (
    "github.com/oapi-codegen/runtime@v1.9.0",
    "github.com/prometheus/client_golang@v1.25.0",
)
# Whether a text is a cursor of a list, or a reference, the document cannot say: schemathesis
# would have every text taken. It would also have empty parameters refused, which are as good as
# left out. A stream of events does not end.
UNFIT = "positive_data_acceptance,negative_data_rejection"
LEFT_OUT = ("--exclude-checks", UNFIT, "--exclude-path", "/api/v1/events")
# A row of calls has up to six of them, each with a verdict of its own: few rows are many requests.
ROWS = 40
UNWRITTEN = "results could not be written; the history has them"
READY_S = 1800.0  # until devices take runs: the daemon may have to wait for the CPU


def run(*words: str | os.PathLike[str], cwd: pathlib.Path = ROOT, **env: str) -> None:
    """Runs a command, or ends this one."""
    print("==", *(os.fspath(w) for w in words), flush=True)
    code = subprocess.run(words, cwd=cwd, env=os.environ | env).returncode
    if code:
        sys.exit(f"{words[0]} ended with {code}")


class Daemon:
    """The API of a daemon: ``url``, and the ``token`` that it asks for."""

    def __init__(self, folder: pathlib.Path, program: pathlib.Path, python: str) -> None:
        self.token = secrets.token_hex(16)
        self.log = folder / "daemon.log"
        (folder / "watch").mkdir(exist_ok=True)
        env = os.environ | {"KERNELWRIGHT_API_TOKEN": self.token}
        words = ["daemon", "--data-dir", folder / "data", "--watch", folder / "watch"]
        words += ["--listen", "127.0.0.1:0", "--device", "cpu", "--rounds", "1", "--python", python]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([program, *words], env=env, stdout=log, stderr=log)
        self.url = ""

    def ask(self, path: str) -> str:
        """Returns an answer, or raises OSError."""
        request = urllib.request.Request(self.url + path)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def requests(self) -> int:
        """Returns how many it has been asked."""
        found = re.search(r"^kernelwright_http_requests_total (\d+)$", self.ask("/metrics"), re.M)
        return int(found[1]) if found else 0

    def wait(self) -> None:
        """Waits until devices take runs."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.5)
            said = re.search(r"url=(http://\S+)", self.log.read_text())
            if said:
                self.url = said[1]
                with contextlib.suppress(OSError):
                    self.ask("/readyz")
                    return
        sys.exit(f"no device of the daemon takes runs: {self.log.read_text()}")

    def stop(self) -> None:
        """Stops it, and examines what it said."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=600):
            sys.exit(f"the daemon failed: {self.log.read_text()}")
        said = self.log.read_text()
        # The runs that wait in the record are of files that nobody has.
        bad = [n for n in said.split("\n") if " ERR " in n and UNWRITTEN not in n]
        if self.token in said or bad or "panic" in said:
            sys.exit(f"the daemon's log has what it should not: {said}")


@contextlib.contextmanager
def working(folder: pathlib.Path, python: str) -> Iterator[Daemon]:
    """Lends a daemon with a record of 300 rounds."""
    program = folder / "kernelwright"
    run("go", "build", "-trimpath", "-o", program, "./cmd/kernelwright")
    if not (folder / "data").exists():
        fill = ("-rounds", "300", "-tasks", "20", "-warm", "0", "-bin", "")
        run("go", "run", "./bench/history_million", "-data-dir", folder / "data", *fill)
    daemon = Daemon(folder, program, python)
    try:
        daemon.wait()
        (folder / "openapi.json").write_text(daemon.ask("/openapi.json"))
        yield daemon
        daemon.stop()
    finally:
        daemon.process.kill()


def tools(folder: pathlib.Path) -> pathlib.Path:
    """Installs the tools in Python, and returns the folder of their programs."""
    programs = folder / "venv" / "bin"
    if not (programs / "python").exists():
        venv.create(folder / "venv", with_pip=True)
    run(programs / "python", "-m", "pip", "install", "-q", *PYTHON_TOOLS)
    return programs


def python_client(folder: pathlib.Path, daemon: Daemon, programs: pathlib.Path) -> None:
    """Generates the client in Python, and uses it."""
    to = folder / "python"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    words = ("generate", "--path", folder / "openapi.json", "--meta", "none", "--fail-on-warning")
    # Its formatter is one more tool, and changes nothing of what is generated.
    (to / "config.yml").write_text("post_hooks: []\n")
    package = ("--config", to / "config.yml", "--output-path", to / "kernelwright_client")
    run(programs / "openapi-python-client", *words, *package)
    shutil.copy(HERE / "client.py", to)
    run(programs / "python", to / "client.py", daemon.url, KERNELWRIGHT_API_TOKEN=daemon.token)


def go_client(folder: pathlib.Path, daemon: Daemon) -> None:
    """Generates the client in Go, and uses it."""
    to = folder / "go"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    (to / "go.mod").write_text("module client\n\ngo 1.26.0\n")
    (to / "config.yml").write_text(
        "package: main\noutput: client.gen.go\ngenerate: {client: true, models: true}\n"
    )
    run("go", "run", OAPI_CODEGEN, "--config", "config.yml", folder / "openapi.json", cwd=to)
    shutil.copy(HERE / "testdata" / "main.go", to)
    run("go", "get", *GO_MODULES, cwd=to)
    run("go", "mod", "tidy", cwd=to)
    run("go", "build", "-o", "client", ".", cwd=to)
    run(to / "client", daemon.url, KERNELWRIGHT_API_TOKEN=daemon.token)


def fuzz(folder: pathlib.Path, daemon: Daemon, programs: pathlib.Path, requests: int) -> None:
    """Has schemathesis make so many requests at least, and counts them at the daemon."""
    begun, seed = daemon.requests(), int(time.time()) // 86400
    while (done := daemon.requests() - begun) < requests:
        print(f"schemathesis: {done} of {requests} requests", flush=True)
        token = ("-H", f"Authorization: Bearer {daemon.token}")
        words = ("-u", daemon.url, "-c", "all", *token, *LEFT_OUT, "--seed", str(seed))
        how = ("--continue-on-failure", "--request-timeout", "60", "--no-color")
        most = ("-n", str(max(20, requests // 20)))  # of each operation
        first = (*most, "--phases", "examples,coverage,fuzzing")
        for of in (first, ("-n", str(ROWS), "--phases", "stateful")):
            run(programs / "schemathesis", "run", "openapi.json", *words, *how, *of, cwd=folder)
        seed += 1
    print(f"schemathesis: {done} requests, each answered as the document says", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--requests", type=int, default=20_000, help="of schemathesis, at least")
    parser.add_argument("--folder", type=pathlib.Path, help="where all of it is kept; else nowhere")
    a = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = a.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        programs = tools(folder)
        daemon = stack.enter_context(working(folder, a.python))
        python_client(folder, daemon, programs)
        go_client(folder, daemon)
        fuzz(folder, daemon, programs, a.requests)


if __name__ == "__main__":
    main()
