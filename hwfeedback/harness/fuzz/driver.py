"""Runs fuzz targets: ``python driver.py [--seconds N] [NAME...]``.

A target is a file ``fuzz_NAME.py`` beside this one, with ``seeds()``, ``one(data)``, which raises
where something that must always hold does not, and ``MODULES``, what is watched for coverage. Under
atheris inputs are chosen by what they reach; where this Python has none, they are seeds mutated at
random, which finds less. Both begin with the seeds and with what lies in ``corpus/NAME``: inputs
that once failed. A new one is written there, to be committed with its mending.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).parent
CORPUS = HERE / "corpus"
MAX_LEN = 32 << 10

_NUMBERS = [0, 1, -1, 2, 64, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324]
_NOT_FINITE = [float("nan"), float("inf")]
_TEXTS = ["", "x", "x" * 3000, "a\nb\rc", "\x1b[2J\u202e", "\x00", "\ud800", "²", "ok", "../../x"]


def names() -> list[str]:
    return sorted(p.stem.removeprefix("fuzz_") for p in HERE.glob("fuzz_*.py"))


def load(name: str) -> Any:
    return importlib.import_module(f"fuzz_{name}")


def inputs(name: str, target: Any) -> list[bytes]:
    """Returns the seeds of a target and what once failed."""
    folder = CORPUS / name
    kept = sorted(folder.iterdir()) if folder.is_dir() else []
    return [*target.seeds(), *(p.read_bytes() for p in kept)]


# Mutation.


def _nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [value] if i % 2 else {"t": value}
    return value


def _value(r: random.Random) -> Any:
    kinds = [
        lambda: r.choice(_NUMBERS),
        lambda: r.choice(_NOT_FINITE),
        lambda: r.choice(_TEXTS),
        lambda: r.choice([None, True, False, [], {}]),
        lambda: _nested(r.choice([3, 40, 300])),
        lambda: [r.choice(_NUMBERS)] * r.choice([1, 70, 1000]),
    ]
    return r.choice(kinds)()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns container and key of each value within."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left and len(found) < 5000:
        v = left.pop()
        items = v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ()
        for key, inner in items:
            found.append((v, key))
            left.append(inner)
    return found


def mutate_json(data: bytes, r: random.Random) -> bytes | None:
    """Changes one or a few values of a JSON text, or returns None for what is none."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        places = _places(root)
        if not places:
            return json.dumps(_value(r)).encode()
        at, key = r.choice(places)
        other, its = r.choice(places)
        act = r.randrange(8)
        if act < 4:
            at[key] = _value(r)
        elif act == 4:
            at[key] = json.loads(json.dumps(other[its]))
        elif act == 5:
            del at[key]
        elif act == 6 and isinstance(at, list):
            at.insert(key, at[key])
        elif isinstance(at[key], int) and not isinstance(at[key], bool):
            at[key] += r.choice([-1, 1, 7, -64, 1 << 20])
        elif isinstance(at[key], str):
            at[key] = mutate_bytes(at[key].encode("utf-8", "replace"), r).decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(root).encode()
    return None


def mutate_bytes(data: bytes, r: random.Random) -> bytes:
    """Changes, inserts, drops or doubles a few bytes."""
    out = bytearray(data)
    for _ in range(r.choice([1, 1, 2, 5])):
        at = r.randrange(len(out) + 1)
        end = min(len(out), at + r.choice([1, 2, 4, 16, 200]))
        act = r.randrange(4)
        if act == 0 and at < len(out):
            out[at] ^= 1 << r.randrange(8)
        elif act == 1:
            out[at:at] = bytes(
                r.choice(b'\x00\xff\n"{}[]:,0129-.e\\ ') for _ in range(r.choice([1, 3]))
            )
        elif act == 2:
            del out[at:end]
        else:
            out[at:at] = out[at:end] * r.choice([1, 2, 50])
    return bytes(out[:MAX_LEN])


def mutate(data: bytes, r: random.Random) -> bytes:
    if r.random() < 0.8 and (changed := mutate_json(data, r)) is not None:
        return changed[:MAX_LEN]
    return mutate_bytes(data, r)


# Running.


class Found(Exception):
    """An input for which a target raised."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(f"{name} fails on {data[:500]!r}")
        self.data = data


def attempt(name: str, target: Any, data: bytes) -> None:
    try:
        target.one(data)
    except Exception as e:
        raise Found(name, data) from e


def replay(name: str, target: Any) -> None:
    """Runs the seeds and what once failed."""
    for data in inputs(name, target):
        attempt(name, target, data)


def at_random(name: str, target: Any, seconds: float, seed: int) -> int:
    """Runs mutated inputs for so long. Returns how many. Raises Found."""
    r = random.Random(seed)
    pool = inputs(name, target)
    count = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutate(r.choice(pool), r)
        attempt(name, target, data)
        count += 1
        if count % 50 == 0 and len(pool) < 500:
            pool.append(data)  # several changes one upon the other reach further
    return count


def _package() -> set[str]:
    """Returns the names of our modules."""
    files = (HERE.parent / "kwharness").rglob("*.py")
    return {".".join(f.relative_to(HERE.parent).with_suffix("").parts) for f in files}


def under_atheris(atheris: Any, name: str, seconds: float) -> None:
    """Never returns."""
    sys.path.insert(0, str(HERE))
    watched = importlib.import_module("watched").MODULES[name]
    # A module that is included brings all of its package along.
    others = sorted(_package() - set(watched))
    with atheris.instrument_imports(include=list(watched), exclude=others):
        target = load(name)
    corpus = tempfile.mkdtemp(prefix="fuzz-")
    for i, data in enumerate(inputs(name, target)):
        (pathlib.Path(corpus) / str(i)).write_bytes(data)
    (CORPUS / name).mkdir(parents=True, exist_ok=True)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        r = random.Random(seed)
        changed = mutate_json(data, r) if r.random() < 0.6 else None
        return changed[:most] if changed is not None else atheris.Mutate(data, most)

    options = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={MAX_LEN}", "-timeout=20"]
    options += ["-rss_limit_mb=4096", f"-artifact_prefix={CORPUS / name}/", "-verbosity=0"]
    options += ["-print_final_stats=1"]
    atheris.Setup([name, *options, corpus], target.one, custom_mutator=mutator)
    atheris.Fuzz()


def run_one(name: str, seconds: float) -> None:
    try:
        import atheris
    except ImportError:
        print(f"{name}: this Python has no atheris: inputs are mutated at random", flush=True)
        target, seed = load(name), int.from_bytes(os.urandom(4), "big")
        try:
            replay(name, target)
            print(f"{name}: {at_random(name, target, seconds, seed)} inputs", flush=True)
        except Found as e:
            folder = CORPUS / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(e.data).hexdigest()[:16]).write_bytes(e.data)
            raise
        return
    under_atheris(atheris, name, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs fuzz targets of the harness.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--seconds", type=float, default=120.0, help="for each target")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.names) - set(names()):
        parser.error(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(names())}"
        )
    if args.here:
        run_one(args.names[0], args.seconds)
        return 0
    failed = []
    for name in args.names or names():
        print(f"== {name}, {args.seconds:g} s", flush=True)
        # A process of its own each: what is watched for coverage is settled at its import.
        command = [sys.executable, __file__, "--here", "--seconds", str(args.seconds), name]
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            done = subprocess.run(command, check=False, env={**os.environ, "TMPDIR": folder})
        if done.returncode != 0:
            failed.append(name)
        with contextlib.suppress(OSError):
            (CORPUS / name).rmdir()  # where nothing was found
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in {CORPUS}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    sys.exit(main())
