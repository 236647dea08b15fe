"""Answers requests on standard input, a JSON object a line, on standard output.

``catalogue`` crawls torch, ``borrowed`` transformers; ``use`` takes a catalogue; ``compose`` draws
a task; ``protect`` remembers a file that others must not be like; ``near`` says what a file is
like. The process runs nothing but the installed libraries and files that it composed of them:
foreign files are parsed, never run.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import sys
import warnings
from typing import Any

import alike

ANSWERS = sys.stdout


def answer(value: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(value) + "\n")
    ANSWERS.flush()


def told(n: int, of: int) -> None:
    """Says how far a request is."""
    answer({"tried": n, "of": of})


class Service:
    """What requests work on."""

    def __init__(self) -> None:
        self.known: list[tuple[str, str, alike.Canonical]] = []  # tag, name, tree
        self.composer: Any = None
        self.modules: list[dict[str, Any]] = []  # of transformers

    def libraries(self, _: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"transformers": importlib.metadata.version("transformers")}
        except importlib.metadata.PackageNotFoundError:
            return {"transformers": ""}

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        import catalogue

        return {"catalogue": catalogue.crawl(told, request["journal"])}

    def borrowed(self, request: dict[str, Any]) -> dict[str, Any]:
        import borrowed

        return {"catalogue": borrowed.crawl(told, request["journal"])}

    def use(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        import composer

        torch.set_num_threads(1)
        self.composer = composer.Composer(request["operators"])
        self.modules = request.get("modules") or []
        return {}

    def held(self, request: dict[str, Any]) -> dict[str, Any]:
        import composer

        return {
            "kinds": composer.held_kinds(request["operators"], request["seed"], request["share"])
        }

    def rates(self, request: dict[str, Any]) -> dict[str, Any]:
        import composer

        return {"rates": composer.rates(request["operators"], told)}

    def compose(self, request: dict[str, Any]) -> dict[str, Any]:
        """Composes the task of an index."""
        import composer
        import cost

        rng = random.Random(f"task {request['seed']} {request['index']}")
        wish = composer.Wish(
            operators=request["operators"],
            low_ms=request["low_ms"],
            high_ms=request["high_ms"],
            machine=cost.Machine(**request["machine"]),
            without=frozenset(request["without"]),
            one_of=frozenset(request["one_of"]),
            only=frozenset(request["only"]),
            ranks=tuple(request["ranks"]) or composer.RANKS,
            dtypes=request["dtypes"],
        )
        try:
            if request.get("module"):
                return self.module(rng, wish)
            drawn = self.composer.compose(rng, wish)
            return written(drawn, rng)
        except composer.NoTask as e:
            return {"reason": e.reason}
        except Exception as e:  # of an operator that nobody foresaw: the next draw goes on
            return {"reason": f"raises {type(e).__name__} when it is drawn"}

    def module(self, rng: random.Random, wish: Any) -> dict[str, Any]:
        import borrowed

        drawn = borrowed.compose(rng, self.modules, wish.low_ms, wish.high_ms, wish.machine)
        run_small(drawn["source"])
        return drawn

    def protect(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            tree = alike.canonical(request["source"])
            self.known.append((request["tag"], request["name"], tree))
        except alike.Unreadable as e:
            return {"reason": str(e)}
        return {}

    def near(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            mine = alike.canonical(request["source"])
        except alike.Unreadable as e:
            return {"reason": str(e)}
        except Exception as e:  # of a text that nobody foresaw: the process knows many others
            return {"reason": f"reading the file raises {type(e).__name__}"}
        among = [
            (f"{tag}\n{name}", t) for tag, name, t in self.known if tag not in request["without"]
        ]
        found, named = alike.nearest(mine, among, request["limit"])
        tag, _, name = named.partition("\n")
        labels = sorted({n for n in mine.labels if ":" not in n} - PLUMBING)
        return {"similarity": found, "tag": tag, "to": name, "kinds": labels}


PLUMBING = {"out", "in", "par", "if", "loop", "big", "index", "put", "item", "op", "cmp"}


def written(drawn: Any, rng: random.Random) -> dict[str, Any]:
    """Returns a composed task as it is told, once its file was run with a small batch."""
    import composer
    from render import render

    source = render(drawn, rng.random() < 0.6)
    try:
        run_small(source)
    except Exception as e:
        raise composer.NoTask(f"its file does not run: {type(e).__name__}") from e
    families = {e["path"]: e["family"] for e in SERVICE.composer.operators}
    return {
        "source": source,
        "operators": [s.path for s in drawn.steps],
        "kinds": drawn.kinds(),
        "families": [families[s.path] for s in drawn.steps],
        "primitives": drawn.primitives,
        "dtype": drawn.dtype,
        "estimate_ms": drawn.estimate_ms,
    }


def run_small(source: str) -> None:
    """Runs a composed file with a small batch. Raises what it raises."""
    import torch

    text = re.sub(r"^batch_size = \d+$", "batch_size = 2", source, flags=re.MULTILINE)
    space: dict[str, Any] = {"__name__": "task"}
    exec(compile(text, "task.py", "exec"), space)
    with torch.no_grad():
        space["Model"](*space["get_init_inputs"]()).eval()(*space["get_inputs"]())


SERVICE = Service()


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        request = json.loads(line)
        answer(getattr(SERVICE, request["op"])(request))


if __name__ == "__main__":
    main()
