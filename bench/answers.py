"""Times how soon ``kernelwright`` answers what needs no device, of two binaries in one run.

A missing semicolon, a verdict that is remembered, a file that is not there, and a model whose
server nobody answers at: alone, and beside a daemon that optimises examples in the same data
folder. Every missing semicolon is in a file that nobody has seen, for a reference that was judged
against before. The two binaries take turns, each with a data folder of its own, and the median of
their repetitions is told with the least and the most. Where a process that has imported PyTorch
waits (``evaluation.keep_warm``), it is there before the clock starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).parents[1]
LIMIT_S = 1800.0  # of one command
BEGINS_S = 900.0  # until a daemon is at work
BUSY = (
    *("softmax", "layer_norm", "gelu_chain", "rms_norm", "log_softmax_channels", "column_mean"),
    *("l2_normalise", "masked_softmax", "batch_norm_relu", "row_sum", "group_norm", "avg_pool"),
)
# A port of this machine that nobody listens at: discard's, which has gone out of use.
SETTINGS = '[llm.providers.gone]\nbase_url = "http://127.0.0.1:9/v1"\nattempts = 1\n'


@dataclass
class Side:
    """One of the binaries, with its data folder."""

    name: str
    program: str
    folder: pathlib.Path
    python: str
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, *words: str, code: Sequence[int] = (0,), warm: bool = True) -> tuple[float, str]:
        """Returns the seconds of a command and its standard output. Exits where it ends with
        another code.
        """
        env = os.environ | {"KERNELWRIGHT_EVALUATION_KEEP_WARM": "5m" if warm else "0s"}
        command = [self.program, *words, "--data-dir", str(self.folder / "data")]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT_S)
        took = time.perf_counter() - begun
        if done.returncode not in code:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return took, done.stdout


class Files:
    """What is asked about."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.reference = ROOT / "examples" / "softmax.py"
        self.right = (ROOT / "examples" / "candidates" / "softmax_native.py").read_text()
        self.wrong = self.file("wrong", self.right.replace("1.0f / total", "2.0f / total"))
        self.settings = folder / "gone.toml"
        self.settings.write_text(SETTINGS)

    def file(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / f"{name}.py"
        path.write_text(text)
        return path

    def broken(self) -> pathlib.Path:
        """Returns a candidate without its first semicolon that nobody has seen."""
        mark = time.time_ns()
        text = self.right.replace('r"""', f'r"""// {mark}\n', 1)
        code = text.index('r"""')
        at = text.index(";", code)
        return self.file(f"broken_{mark}", text[:at] + text[at + 1 :])


Case = Callable[[Side, Files], float]


def missing_semicolon(side: Side, files: Files, warm: bool = True) -> float:
    words = ("eval", str(files.reference), str(files.broken()), "--python", side.python, "--json")
    took, said = side.ask(*words, warm=warm)
    verdict = json.loads(said)
    if verdict["status"] != "build_failed" or verdict.get("cached"):
        sys.exit(f"{side.name}: {verdict['status']}: {verdict['reason']}")
    return took


def remembered(side: Side, files: Files, warm: bool = True) -> float:
    words = ("eval", str(files.reference), str(files.wrong), "--python", side.python, "--json")
    took, said = side.ask(*words, warm=warm)
    verdict = json.loads(said)
    if verdict["status"] != "wrong":
        sys.exit(f"{side.name}: {verdict['status']}: {verdict['reason']}")
    return took


def wrong_name(side: Side, files: Files) -> float:
    return side.ask("eval", str(files.reference), str(files.folder / "none.py"), code=(2,))[0]


def no_server(side: Side, files: Files) -> float:
    words = ("run", str(files.reference), "--coder", "gone:model", "--python", side.python)
    out = ("--config", str(files.settings), "--out", str(side.folder / "results"))
    return side.ask(*words, *out, code=(1,))[0]


ALONE: dict[str, Case] = {
    "a missing semicolon": missing_semicolon,
    "the same, no process waiting": lambda s, f: missing_semicolon(s, f, warm=False),
    "a remembered verdict": remembered,
    "the same again, no process waiting": lambda s, f: remembered(s, f, warm=False),
    "a candidate's file that is not there": wrong_name,
    "a model whose server is not there (`run --coder`)": no_server,
}
BESIDE: dict[str, Case] = {
    "a missing semicolon, beside a daemon at work": missing_semicolon,
    "a remembered verdict, beside a daemon at work": remembered,
}


@contextlib.contextmanager
def daemon(side: Side) -> Iterator[Callable[[], None]]:
    """A daemon at work. Gives what exits where it is not."""
    watched = side.folder / "watched"
    watched.mkdir(exist_ok=True)
    for name in BUSY:
        (watched / f"{name}.py").write_bytes((ROOT / "examples" / f"{name}.py").read_bytes())
    words = ["daemon", "--watch", str(watched), "--rounds", "30", "--patience", "30"]
    words += ["--headroom", "1", "--python", side.python, "--data-dir", str(side.folder / "data")]
    process = subprocess.Popen([side.program, *words], stderr=subprocess.DEVNULL)
    until = time.monotonic() + BEGINS_S

    def works() -> bool:
        said = side.ask("history", "ls", "--status", "running", "--json")[1]
        return bool(json.loads(said)["runs"]) and process.poll() is None

    def hold() -> None:
        if not works():
            sys.exit(f"{side.name}: the daemon has nothing left to do")

    try:
        while not works():
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{side.name}: the daemon does not begin to work")
            time.sleep(1)
        yield hold
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait()


def measure(sides: Sequence[Side], files: Files, cases: dict[str, Case], repeats: int) -> None:
    """Each case once to have what it leaves, then so many times, the binaries in turn."""
    for name, case in cases.items():
        for side in sides:
            case(side, files)
        for _ in range(repeats):
            for side in sides:
                side.seconds.setdefault(name, []).append(case(side, files))
        print(row(name, sides), file=sys.stderr, flush=True)


def row(name: str, sides: Sequence[Side]) -> str:
    cells = [
        f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})"
        for s in (side.seconds[name] for side in sides)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, help="a binary")
    parser.add_argument("--after", required=True, help="another one")
    parser.add_argument("--python", required=True, help="a Python that has PyTorch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", type=int, default=3, help="repetitions beside a daemon")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = Files(folder)
        sides = [
            Side(n, str(pathlib.Path(program).resolve()), folder / n, args.python)
            for n, program in (("before", args.before), ("after", args.after))
        ]
        for side in sides:
            side.folder.mkdir()
            remembered(side, files)  # the reference is known, and what its inputs do
        measure(sides, files, ALONE, args.repeats)
        for side in sides:  # one daemon at a time: two would wait for each other
            with daemon(side) as works:
                for name, case in BESIDE.items():
                    for _ in range(args.beside):
                        works()
                        side.seconds.setdefault(name, []).append(case(side, files))
        print(f"| seconds | {' | '.join(side.name for side in sides)} |\n|---|---:|---:|")
        for name in (*ALONE, *BESIDE):
            print(row(name, sides))
    for side in sides:
        load = os.getloadavg()[0]
        print(f"{side.name}: {side.ask('version')[1].strip()}; load {load:.0f}", file=sys.stderr)


if __name__ == "__main__":
    main()
