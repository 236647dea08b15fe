"""A process that has imported what the programs need, and forks one for each request: on a CPU
importing takes longer than a small stage.

    python -m rl.host

Standard input has a request a line, of JSON: ``{"module": "rl.ppo", "config": FILE, "folder": ...,
"log": FILE, "env": {...}}``. Standard output has the program's own lines, and ``{"event": "forked",
"pid": N}`` and ``{"event": "exit", "code": N}`` about it; a negative code is a signal's number. One
program runs at a time. It is for a CPU alone: a fork cannot use a GPU that was looked at.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, NoReturn

from rl.workers import end_with

NEEDED = ("rl.answers", "rl.bootstrap", "rl.collect", "rl.critic", "rl.ppo", "rl.rft")
# What transformers imports when it is first asked for.
LAZY = (
    "AutoModelForCausalLM",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
    "GenerationConfig",
    "LlamaForCausalLM",
    "LlamaForTokenClassification",
    "PreTrainedTokenizerFast",
)


def say(**fields: Any) -> None:
    """Prints a line about a program."""
    os.write(1, (json.dumps(fields) + "\n").encode())


def main() -> int:
    """Serves requests until standard input ends."""
    import transformers

    for name in LAZY:
        getattr(transformers, name)
    for name in NEEDED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        host = os.getpid()
        pid = os.fork()
        if not pid:
            child(request, host)
        say(event="forked", pid=pid)
        _, status = os.waitpid(pid, 0)
        say(event="exit", code=os.waitstatus_to_exitcode(status))
    return 0


def child(request: dict[str, Any], host: int) -> NoReturn:
    """Runs a program to its end, or to the host's."""
    code = 1
    try:
        end_with(host)
        os.setpgid(0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.chdir(request["folder"])
        os.environ.update(request.get("env") or {})
        from rl import stage

        sys.argv = [request["module"], "--config", request["config"]]
        program = importlib.import_module(request["module"])
        code = stage.main(program.Settings, program.run)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
