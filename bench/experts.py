"""Language models' whole way on a real device, with replies that were written beforehand.

A server that speaks OpenAI's protocol serves the replies in ``bench/experts``: as a strong model
would send them, with its improvements and its mistakes. The daemon gets it as Coder and Judge,
takes references from a folder that it watches, and certifies what it keeps. Then this prints what
became of each round, what was asked in how many characters, with ``--cudaforge CHECKOUT`` beside
what CudaForge would have asked, and checks from the record that

- every round ended as its reply was written to end, and each task in a certificate,
- every prompt to the Judge holds the candidate, status and metrics of its own round, and no others,
- the recorded runs replay to the same decisions.

It exits with 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
Json = dict[str, Any]
GOOD = ("correct", "certified")


@dataclasses.dataclass
class Turn:
    """A round as it is written: the Coder's reply, how it is to end, and the Judge's reply."""

    coder: str
    ends: str
    judge: str = ""


@dataclasses.dataclass
class Expert:
    """Replies to one reference."""

    name: str
    reference: str  # relative to KernelBench's folder, or to this repository
    device: str
    turns: list[Turn]
    source: str = ""

    @classmethod
    def read(cls, path: pathlib.Path) -> Expert:
        head, *parts = re.split(r"^-- (.+) --\n", path.read_text(), flags=re.M)
        known = dict(line.split(": ", 1) for line in head.strip().splitlines())
        turns: list[Turn] = []
        for title, text in zip(parts[::2], parts[1::2], strict=True):
            role, number, *ends = title.split()
            if role == "coder" and int(number) == len(turns):
                turns.append(Turn(text.strip(), ends[0]))
            elif role == "judge" and int(number) == len(turns) - 1:
                turns[-1].judge = text.strip()
            else:
                raise ValueError(f"{path}: {title!r} stands out of order")
        return cls(path.stem, known["reference"], known["device"], turns)


class Server(http.server.ThreadingHTTPServer):
    """Answers chat completions: ``coder`` gets the replies to a reference in their order, ``judge``
    the one to the Coder's last. A request that was answered gets the same answer again.
    """

    def __init__(self, experts: list[Expert]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.experts = experts
        self.lock = threading.Lock()
        self.asked = {e.name: 0 for e in experts}
        self.answered: dict[str, str] = {}

    def answer(self, body: Json) -> str | None:
        """Returns the reply, or None where there is none."""
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        prompt = body["messages"][1]["content"]
        with self.lock:
            if key in self.answered:
                return self.answered[key]
            found = [e for e in self.experts if e.source.strip() in prompt]
            if len(found) != 1:
                return None
            expert = found[0]
            if body["model"] == "coder":
                self.asked[expert.name] += 1
            turn = self.asked[expert.name] - 1
            if not 0 <= turn < len(expert.turns):
                return None
            written = expert.turns[turn]
            reply = written.coder if body["model"] == "coder" else written.judge
            self.answered[key] = reply
            return reply


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.server.answer(body)
        if reply is None:
            error = {"message": "no reply was written for this", "type": "invalid_request_error"}
            self.send(400, "application/json", json.dumps({"error": error}))
            return
        head = {"id": "chatcmpl-0", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": reply}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = head | {"object": "chat.completion", "choices": [choice]}
            self.send(200, "application/json", json.dumps(whole))
            return
        events = ""
        for text in re.findall(r"(?s).{1,2000}", reply):
            events += self.event(head, {"content": text}, None)
        events += self.event(head, {}, "stop") + "data: [DONE]\n\n"
        self.send(200, "text/event-stream", events)

    def event(self, head: Json, delta: Json, finish: str | None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = head | {"object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n"

    def send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serving(experts: list[Expert]) -> Iterator[int]:
    """Serves replies while it is open. Yields the port."""
    server = Server(experts)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settings(port: int, rounds: int, baselines: str) -> str:
    """Every reply is to be asked for, so nothing ends a run but its rounds."""
    text = f"""
[coder]
name = "experts:coder"
[judge]
name = "experts:judge"
[llm.providers.experts]
base_url = "http://127.0.0.1:{port}/v1"
[llm.prices."experts:*"]
in = 0.0
out = 0.0
as_of = "2026-11-23"
[rounds]
max = {rounds}
patience = {rounds}
headroom = 1.0
wall_time = "1h"
"""
    if baselines:
        text += f"[evaluation]\nbaselines = {json.dumps(baselines.split(','))}\n"
    return text


class Record:
    """What the daemon has recorded."""

    def __init__(self, args: argparse.Namespace, config: pathlib.Path) -> None:
        self.words = [args.bin, "history"]
        self.ending = ["--data-dir", args.data_dir, "--config", str(config)]

    def ask(self, *words: str) -> Json:
        done = subprocess.run(
            [*self.words, *words, *self.ending, "--json"], stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"history {' '.join(words)} failed: {done.stdout.strip()}")
        return json.loads(done.stdout)

    def replays(self, run: int) -> str:
        """Returns what a replay found wrong, or an empty text."""
        words = [*self.words, "replay", str(run), *self.ending]
        done = subprocess.run(words, capture_output=True, text=True)
        return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()


def block(prompt: str, label: str) -> str:
    """Returns what stands in a fence of data, or an empty text."""
    found = re.search(rf"(?ms)^(`{{3,}})data: {re.escape(label)}\n(.*?)^\1$", prompt)
    return found[2] if found else ""


def shown(prompt: str) -> dict[str, float]:
    """The metrics in a prompt to the Judge."""
    pairs = re.findall(r"(?m)^(\S+) = (\S+)", block(prompt, "metrics"))
    return {name: float(value) for name, value in pairs}


def measured(verdict: Json) -> dict[str, float]:
    """All numbers that a verdict has for a Judge."""
    own = (verdict.get("metrics") or {}) | (verdict.get("profile", {}).get("metrics") or {})
    if verdict["candidate_ms"]:
        own |= {"candidate_ms": verdict["candidate_ms"], "headroom": verdict["headroom"]}
    return own


def close(a: float, b: float) -> bool:
    """Whether two numbers are the same as they are printed, with four digits."""
    return abs(a - b) <= 1e-3 * max(abs(a), abs(b)) + 1e-9


def check_judge(prompt: str, rounds: list[Json], index: int) -> list[str]:
    """Returns what in a prompt to the Judge is not of the round that it is about."""
    verdict = rounds[index]["verdict"]
    wrong: list[str] = []
    if rounds[index]["candidate"]["source"].strip() not in prompt:
        wrong.append("does not hold its candidate")
    if f"status: {verdict['status']}\n" not in block(prompt, "verdict"):
        wrong.append("does not hold its status")
    numbers, own = shown(prompt), measured(verdict)
    if verdict["status"] in GOOD and "candidate_ms" not in numbers:
        wrong.append("holds no time")
    for name, value in numbers.items():
        if name not in own or not close(value, own[name]):
            wrong.append(f"shows {name} = {value:.4g}, which is {own.get(name)} in its verdict")
    return wrong


def unbeaten(rounds: list[Json], index: int) -> bool:
    """Whether no round before was faster."""
    before = [
        r["verdict"]["candidate_ms"] for r in rounds[:index] if r["verdict"]["status"] in GOOD
    ]
    return rounds[index]["verdict"]["candidate_ms"] <= min(before, default=float("inf"))


class CudaForge:
    """What CudaForge would ask, by its own functions."""

    def __init__(self, checkout: str, gpu: str) -> None:
        sys.path.insert(0, checkout)
        from prompts import (  # type: ignore[import-not-found]
            error,
            generate_custom_cuda,
            judger_optimization,
            judger_repair,
            optimization,
        )

        self.seed = generate_custom_cuda.build_seed_prompt
        self.system = generate_custom_cuda.default_system_prompt
        self.mend, self.improve = error.build_error_prompt, optimization.build_optimization_prompt
        self.judge_failed = judger_repair.build_correctness_prompts
        self.judge_correct = judger_optimization.build_judger_optimization_prompts
        self.gpu = gpu
        # Those that it asks ncu for: importing them would need pandas.
        text = (pathlib.Path(checkout) / "run_ncu.py").read_text()
        self.metrics = re.findall(r'(?m)^    "(\w+__[\w.]+)",$', text)

    def coder(self, reference: pathlib.Path, last: Json | None, folder: pathlib.Path) -> int:
        """Characters of the Coder's prompt after a round, or of the first."""
        if last is None:
            return len(self.system) + len(self.seed(arch_path=reference, gpu_name=self.gpu))
        source, said = last["candidate"]["source"], last.get("feedback") or {}
        if last["verdict"]["status"] in GOOD:
            path = folder / "candidate.py"
            path.write_text(source)
            parts = {"bottleneck": "bottleneck", "optimisation method": "method"}
            parts |= {"modification plan": "plan"}
            advice = {theirs: said.get(ours, "") for theirs, ours in parts.items()}
            text = self.improve(arch_path=path, gpu_name=self.gpu, optimization_suggestion=advice)
        else:
            parts = {"critical_issue": "issue", "why_it_matters": "why", "minimal_fix_hint": "fix"}
            advice = {theirs: said.get(ours, "") for theirs, ours in parts.items()}
            log = self.log(last)
            text = self.mend(old_code=source, error_log=log, problem=advice, gpu_name=self.gpu)
        return len(self.system) + len(text)

    def judge(self, reference: pathlib.Path, last: Json) -> int:
        """Characters of the Judge's prompt about a round."""
        source = last["candidate"]["source"]
        if last["verdict"]["status"] in GOOD:
            # A value of three digits stands for each: what ncu measured need not be there.
            kernels = {k["name"]: dict.fromkeys(self.metrics, 0.5) for k in self.kernels(last)}
            both = self.judge_correct(
                arch_path=reference, gpu_name=self.gpu, cuda_code=source,
                ncu_metrics_block=json.dumps(kernels, indent=2),
            )  # fmt: skip
        else:
            both = self.judge_failed(
                error_log=self.log(last), arch_path=reference, cuda_code=source
            )
        return sum(map(len, both))

    def kernels(self, last: Json) -> list[Json]:
        """The candidate's own kernels, which are those that it profiles."""
        return (last["verdict"]["build"] or {}).get("kernels") or []

    def log(self, last: Json) -> str:
        """The last 150 lines of an error, as it takes them."""
        verdict = last["verdict"]
        text = (verdict["build"] or {}).get("log") or verdict["reason"]
        return "\n".join(text.splitlines()[-150:])


def skills(prompt: str) -> int:
    """Characters of a prompt that are skills: their lines behind the first one's title."""
    texts = [p.read_text() for p in (ROOT / "prompts/skills").glob("*.md")]
    marks = r"(?<=\S) +\[[^\[\]]+\]$"
    known = {
        x for text in texts for line in text.splitlines() for x in (line, re.sub(marks, "", line))
    }
    titles = {"# " + m for text in texts for m in re.findall(r'(?m)^title = "(.*)"$', text)}
    lines = prompt.splitlines()
    begin = next((i for i, line in enumerate(lines) if line in titles), len(lines))
    size, fence = 0, ""
    for line in lines[begin:]:
        if found := re.match(r"(`{3,})data: ", line):
            fence = fence or found[1]
        elif line == fence:
            fence = ""
        elif not fence and line and line in known | titles:
            size += len(line) + 1
    return size


@dataclasses.dataclass
class Asked:
    """A prompt: its characters, those of skills in it, and CudaForge's."""

    run: str
    round: int
    what: str
    ours: int
    skills: int
    theirs: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", help="default: a new one, which is removed again")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--python", help="a Python that has PyTorch")
    parser.add_argument("--kernelbench", help="KernelBench's folder with level1 and level2 in it")
    parser.add_argument("--task", action="append", help="names from bench/experts; default: all")
    parser.add_argument("--baselines", default="", help="as in evaluation.baselines, with commas")
    parser.add_argument("--cudaforge", help="a checkout of CudaForge, to count its prompts")
    parser.add_argument("--cudaforge-gpu", default="H100", help="as its table of GPUs calls it")
    parser.add_argument("--out", help="a folder to leave results and figures in")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        args.data_dir = args.data_dir or str(folder / "data")
        wrong = show(args, folder, choose(args))
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))


def choose(args: argparse.Namespace) -> list[Expert]:
    """Returns the experts that the device has a use for, with their references read."""
    chosen: list[Expert] = []
    for path in sorted((ROOT / "bench" / "experts").glob("*.txtar")):
        expert = Expert.read(path)
        if expert.device != args.device.partition(":")[0]:
            continue
        if args.task and expert.name not in args.task:
            continue
        base = ROOT
        if not expert.reference.startswith("examples/"):
            if not args.kernelbench:
                sys.exit(f"{expert.name} needs --kernelbench: its reference is not part of this")
            base = pathlib.Path(args.kernelbench)
        expert.source = (base / expert.reference).read_text()
        chosen.append(expert)
    if not chosen:
        sys.exit("nothing was chosen: bench/experts has no such task for this device")
    if len({len(e.turns) for e in chosen}) > 1:
        sys.exit("these tasks have replies for different numbers of rounds: choose with --task")
    return chosen


def show(args: argparse.Namespace, folder: pathlib.Path, experts: list[Expert]) -> list[str]:
    """Runs the daemon, prints the tables and returns what was wrong."""
    watch = pathlib.Path(args.out) if args.out else folder / "watched"
    watch.mkdir(parents=True, exist_ok=True)
    for e in experts:
        (watch / f"{e.name}.py").write_text(e.source)
    config = folder / "config.toml"
    with serving(experts) as port:
        config.write_text(settings(port, len(experts[0].turns), args.baselines))
        words = [args.bin, "daemon", "--until-idle", "--watch", str(watch), "--config", str(config)]
        words += ["--data-dir", args.data_dir, "--device", args.device]
        words += ["--python", args.python] if args.python else []
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    wrong = [f"the daemon ended with {done.returncode}"] if done.returncode else []
    record = Record(args, config)
    theirs = CudaForge(args.cudaforge, args.cudaforge_gpu) if args.cudaforge else None
    runs = {r["task_name"]: r["id"] for r in reversed(record.ask("ls", "--limit", "100")["runs"])}
    asked: list[Asked] = []
    print(
        "| task | rounds | speedup | against | ms | seconds | Judge's prompts | not of the best |"
    )
    print("|---|---|---:|---|---:|---:|---:|---:|")
    for e in experts:
        run = record.ask("show", str(runs[e.name]), "--talk")
        found, line = tell(e, run)
        wrong += [f"{e.name}: {w}" for w in found]
        if said := record.replays(runs[e.name]):
            wrong.append(f"{e.name}: it does not replay: {said}")
        print(line)
        asked += count(e, run, theirs, watch / f"{e.name}.py", folder)
    print_sizes(asked)
    if args.out:
        figures = [dataclasses.asdict(a) for a in asked]
        (watch / "prompts.json").write_text(json.dumps(figures, indent=1))
    return wrong


def talks(run: Json, agent: str) -> dict[int, list[str]]:
    """Round to the texts of the first prompt to an agent."""
    return {
        call["key"].get("round", 0): [m["text"] for m in call["request"]["messages"]]
        for call in run["talk"]
        if call["key"]["agent"] == agent and not call["key"].get("seq")
    }


def tell(expert: Expert, run: Json) -> tuple[list[str], str]:
    """Returns what is wrong with a run, and its line of the table."""
    rounds, wrong = run["rounds"], []
    ended = [r["verdict"]["status"] for r in rounds]
    for i, (turn, status) in enumerate(zip(expert.turns, ended, strict=False)):
        if turn.ends != status:
            reason = rounds[i]["verdict"]["reason"]
            wrong.append(f"round {i} was to be {turn.ends} and is {status}: {reason}")
    if len(rounds) != len(expert.turns):
        wrong.append(f"{len(rounds)} rounds in place of {len(expert.turns)}")
    judged = talks(run, "judge")
    for i, texts in judged.items():
        wrong += [f"the Judge's prompt of round {i} {w}" for w in check_judge(texts[1], rounds, i)]
    beaten = sum(ended[i] in GOOD and not unbeaten(rounds, i) for i in judged)
    head = run["run"]
    best = (head.get("best") or {}).get("certificate") or {}
    if best.get("status") != "certified":
        wrong.append("nothing was certified")
    s = best.get("speedup") or {"value": 0.0, "low": 0.0, "high": 0.0, "against": "–"}
    began, ended_at = (datetime.datetime.fromisoformat(head[k]) for k in ("started", "finished"))
    seconds = (ended_at - began).total_seconds()
    line = (
        f"| {expert.name} | {' '.join(ended)} | {s['value']:.2f} [{s['low']:.2f}, {s['high']:.2f}] "
        f"| {s['against']} | {best.get('candidate_ms', 0):.4g} | {seconds:.0f} | {len(judged)} "
        f"| {beaten} |"
    )
    return wrong, line


def count(
    expert: Expert,
    run: Json,
    theirs: CudaForge | None,
    reference: pathlib.Path,
    folder: pathlib.Path,
) -> list[Asked]:
    """Returns the sizes of all first prompts of a run."""
    rounds, out = run["rounds"], []
    for agent in ("coder", "judge"):
        for i, texts in talks(run, agent).items():
            about = rounds[i if agent == "judge" else i - 1] if agent == "judge" or i else None
            kind = "first round"
            if about:
                good = about["verdict"]["status"] in GOOD
                kind = "optimisation" if good else "correction"
            size = None
            if theirs and agent == "judge":
                size = theirs.judge(reference, about)
            elif theirs:
                size = theirs.coder(reference, about, folder)
            what = f"{agent.capitalize()}, {kind}"
            ours = sum(map(len, texts))
            out.append(Asked(expert.name, i, what, ours, sum(map(skills, texts)), size))
    return out


def print_sizes(asked: list[Asked]) -> None:
    """Prints the mean characters of each kind of prompt and task."""
    print("\nCharacters of a prompt, system message included; means:\n")
    print("| task | prompt | prompts | ours | of which skills | CudaForge |")
    print("|---|---|---:|---:|---:|---:|")
    for run, what in dict.fromkeys((a.run, a.what) for a in asked):
        these = [a for a in asked if (a.run, a.what) == (run, what)]

        def mean(values: list[int], of: int = len(these)) -> str:
            return f"{sum(values) / of:,.0f}"

        theirs = [a.theirs for a in these if a.theirs is not None]
        print(
            f"| {run} | {what} | {len(these)} | {mean([a.ours for a in these])} "
            f"| {mean([a.skills for a in these])} | {mean(theirs) if theirs else '–'} |"
        )


if __name__ == "__main__":
    main()
