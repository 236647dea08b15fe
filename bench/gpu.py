"""Runs what needs a GPU, tests and figures, in parts: as much as ``--seconds`` allow, and goes on
from there the next time, also on another machine that is given the folder of results.

gpu.toml has the steps, each a command. What one printed lies in RESULTS/NAME.txt (tests that
several GPUs share: NAME-GPU.txt), and what came of it in RESULTS/steps.json. One that ended well is
not done again. One that could not be finished in time goes on, by what it keeps itself in RESULTS
or in the record below RESULTS/data, and tests by which of them passed. One that failed is left
alone until ``--again`` names it, so that it holds up nobody; of tests those that passed are not
done again. One whose needs are not here (a checkout of a peer, Go, a program that is to be built)
is left out, which is said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import queue
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import IO

ROOT = pathlib.Path(__file__).parents[1]
# What has more to do than it had time for ends with this.
MORE = os.EX_TEMPFAIL
# Who does not look at a clock is interrupted so long before the end.
GRACE_S = 40.0


@dataclass(frozen=True)
class Step:
    """A command with ``needs``, which are missing here; not begun in under ``least`` seconds."""

    name: str
    words: list[str]
    least: float
    needs: list[str]

    @property
    def tests(self) -> bool:
        return "pytest" in self.words

    @property
    def looks_at_the_clock(self) -> bool:
        script = pathlib.Path(self.words[1]) if len(self.words) > 1 else ROOT
        return script.parent == ROOT / "bench" and '"--seconds"' in script.read_text()


def steps(args: argparse.Namespace) -> dict[str, Step]:
    data = args.results / "data"
    given = {
        "python": sys.executable,
        "device": args.device,
        "kind": args.device.partition(":")[0],
        "results": args.results,
        "kernelbench": args.kernelbench and args.kernelbench.resolve() / "KernelBench",
        "cudaforge": args.cudaforge and args.cudaforge.resolve(),
    }
    values = {name: shlex.quote(str(value)) for name, value in given.items()}
    program, python = shlex.quote(args.bin), values["python"]
    values["program"] = program
    values["here"] = f"--data-dir {shlex.quote(str(data))} --python {python}"
    values["here"] += f" --device {values['device']}"
    values["ours"] = f"--bin {program} --data-dir {shlex.quote(str(data))}"
    values["bench"] = f"{python} {shlex.quote(str(ROOT / 'bench'))}/"
    found = {}
    for step in tomllib.loads((ROOT / "bench" / "gpu.toml").read_text())["step"]:
        asked = {name for _, name, _, _ in string.Formatter().parse(step["command"]) if name}
        needs = [f"--{name}" for name in sorted(asked & given.keys()) if given[name] is None]
        words = shlex.split(step["command"].format(**values))
        if not shutil.which(words[0]):
            needs.append(words[0])
        needs += [file for file in step.get("needs", []) if not (ROOT / file).exists()]
        found[step["name"]] = Step(step["name"], words, step.get("least", 60), needs)
    return found


class Results:
    """What is known of steps, in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.json"
        self.came: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError):
            for name, (came, seconds) in json.loads(self._path.read_text()).items():
                self.came[name], self.seconds[name] = came, seconds

    def output(self, step: Step) -> pathlib.Path:
        return self.folder / f"{step.name}.txt"

    def is_over(self, step: Step) -> bool:
        return self.came.get(step.name, "more") != "more"

    def put(self, step: Step, came: str, seconds: float) -> None:
        self.came[step.name] = came
        self.seconds[step.name] = round(self.seconds.get(step.name, 0.0) + seconds, 1)
        rows = {name: [self.came[name], self.seconds[name]] for name in self.came}
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(rows, indent=1) + "\n")
        written.replace(self._path)

    def told(self, step: Step) -> str:
        missing = f"needs {', '.join(step.needs)}" if step.needs else "not begun"
        came = self.came.get(step.name, missing)
        if not step.tests or step.name not in self.came:
            return came
        outcomes = Counter(outcomes_of(self.output(step)).values())
        return came + "".join(f", {n} {o.lower()}" for o, n in sorted(outcomes.items()))


def outcomes_of(output: pathlib.Path) -> dict[str, str]:
    """Returns by test what became of it at last, as pytest -v printed it."""
    outcomes: dict[str, str] = {}
    files = [output, *sorted(output.parent.glob(f"{output.stem}-[0-9]*.txt"))]
    for file in (f for f in files if f.exists()):
        found = re.findall(r"(?m)^(\S+::.*?) (PASSED|SKIPPED|FAILED|ERROR)\b", file.read_text())
        # One that has failed on one GPU may have passed on another one since.
        outcomes |= {t: o for t, o in found if outcomes.get(t) not in ("PASSED", "SKIPPED")}
    return outcomes


def tests_left(step: Step, output: pathlib.Path) -> list[str]:
    asked = [*step.words, "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    every = [line for line in done.stdout.splitlines() if "::" in line]
    if not every:
        sys.exit(f"{step.name}: pytest found no test: {done.stdout.strip()[-300:]}")
    outcomes = outcomes_of(output)
    return [t for t in every if outcomes.get(t) not in ("PASSED", "SKIPPED")]


def run(step: Step, output: pathlib.Path, seconds: float, gpus: Sequence[str] = ()) -> str:
    """Returns what came of it: "good", "more", or how it failed. Tests are shared by ``gpus``,
    if there are several.
    """
    if step.tests:
        return run_tests(step, output, seconds, gpus or [""])
    words = step.words
    if step.looks_at_the_clock:
        words = [*words, "--seconds", f"{seconds - GRACE_S:.0f}"]
    with output.open("w") as f:
        return command(words, f, seconds)


def command(words: list[str], to: IO[str], seconds: float, **env: str) -> str:
    """Runs it, interrupts it after ``seconds``, and returns what came of it."""
    in_time = True
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=to, stderr=subprocess.STDOUT, env={**os.environ, **env}
    )
    try:
        code = process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        in_time = False
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code == 0:
        return "good"
    return "more" if code == MORE or not in_time else f"failed with exit code {code}"


def run_tests(step: Step, output: pathlib.Path, seconds: float, gpus: Sequence[str]) -> str:
    """Has each GPU take some of the tests that are left, and again some, until there are none."""
    left, end = tests_left(step, output), time.monotonic() + seconds
    words = [*step.words[: step.words.index("pytest") + 1], "-p", "no:cacheprovider"]
    words += ["-vv", "-m", "slow or not slow"]
    # What tests of a file share is made once for each process: so not a process for each test.
    some = len(left) if len(gpus) == 1 else max(len(left) // (4 * len(gpus)), 1)
    shares = queue.SimpleQueue[list[str]]()
    for i in range(0, len(left), some or 1):
        shares.put(left[i : i + some])
    came: list[str] = []

    def work(gpu: str) -> None:
        env, file = {}, output
        if len(gpus) > 1:
            env, file = {"CUDA_VISIBLE_DEVICES": gpu}, output.with_stem(f"{output.stem}-{gpu}")
        with contextlib.suppress(queue.Empty), file.open("a") as f:
            while share := shares.get_nowait():
                if time.monotonic() >= end:
                    came.append("more")
                    return
                came.append(command([*words, *share], f, end - time.monotonic(), **env))

    with futures.ThreadPoolExecutor(len(gpus)) as pool:
        list(pool.map(work, gpus))
    return max(came, key=lambda c: (c != "good", c != "more"), default="good")


def gpus_of(device: str) -> list[str]:
    """Returns the numbers that "cuda:0,1" or "cuda:all" names; none: what is there, as it is."""
    which = device.partition(":")[2]
    if which == "all":
        which = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if not which and shutil.which("nvidia-smi"):
            listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True).stdout
            return re.findall(r"(?m)^GPU (\d+):", listed)
    return which.split(",") if which else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a folder to go on in")
    parser.add_argument("--seconds", type=float, default=540.0, help="all together, at most")
    parser.add_argument("--only", default="", help="names of steps, with commas, in their order")
    parser.add_argument("--again", default="", help="names of steps to begin anew, with commas")
    parser.add_argument(
        "--device", default="cuda", help="cuda:1, say: beside another run; cuda:all"
    )
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--kernelbench", type=pathlib.Path, help="a checkout of KernelBench")
    parser.add_argument("--cudaforge", type=pathlib.Path, help="a checkout of CudaForge")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    gpus = gpus_of(args.device)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # of what does not ask the program
    args.results = args.results.resolve()
    results, every = Results(args.results), steps(args)
    names = list(filter(None, args.only.split(","))) or list(every)
    anew = list(filter(None, args.again.split(",")))
    for name in [*names, *anew]:
        if name not in every:
            sys.exit(f"there is no step {name!r}: there are {', '.join(every)}")
    for name in anew:
        results.came.pop(name, None)
    for step in (every[n] for n in names):
        begun = time.monotonic()
        left = end - begun - GRACE_S
        if step.needs or results.is_over(step) or left < step.least:
            continue
        came = run(step, results.output(step), left, gpus)
        results.put(step, came, time.monotonic() - begun)
        print(f"{step.name}: {came}", flush=True)
    print(f"\n{'step':18} seconds  what came of it")
    for step in (every[n] for n in names):
        print(f"{step.name:18} {results.seconds.get(step.name, 0):7.0f}  {results.told(step)}")


if __name__ == "__main__":
    main()
