"""A protocol double: a fork server and a referee that misbehave on demand.

It is for the tests of supervision. DOUBLE says how the server behaves; the type of a request says
how the referee does. It speaks through the real protocol module, whose folder is PROTOCOL, and
needs no torch.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

sys.path.insert(0, os.environ["PROTOCOL"])

from kwharness.base.protocol import Channel, Closed

MODE = os.environ.get("DOUBLE", "")


def referee(channel: Channel, config: dict) -> None:
    served = 0
    while True:
        msg, fds = channel.recv()
        served += 1
        kind, ident = msg["type"], msg["id"]
        if kind == "echo":
            body = {k: v for k, v in msg.items() if k not in ("v", "id", "type", "fds")}
            result = {"body": body, "pid": os.getpid(), "served": served, "config": config}
            result["files"] = [os.read(fd, 100).decode() for fd in fds]
            channel.send({"id": ident, "type": "result", "result": result})
        elif kind == "progress":
            for n in range(3):
                channel.send(
                    {"id": ident, "type": "progress", "stage": "verify", "note": f"family {n}"}
                )
            channel.send({"id": ident, "type": "result", "result": {}})
        elif kind == "die":
            print(
                "Traceback (most recent call last):\nMemoryError: no more",
                file=sys.stderr,
                flush=True,
            )
            os._exit(3)
        elif kind == "hang":
            time.sleep(3600)
        elif kind == "garbage":
            socket.socket(fileno=os.dup(channel.fileno())).send(b"\x00\x00\x00\x05hello")
            time.sleep(3600)
        elif kind == "oversize":
            socket.socket(fileno=os.dup(channel.fileno())).send(b"\xff\xff\xff\xff")
            time.sleep(3600)
        elif kind == "wrong_id":
            channel.send({"id": ident + 7, "type": "result", "result": {}})
        elif kind == "hold":  # keeps the descriptors in a process that outlives the request
            child = os.fork()
            if child == 0:
                time.sleep(3600)
            channel.send({"id": ident, "type": "result", "result": {"pid": child}})
        elif kind in ("infrastructure", "invalid"):
            error = {"kind": kind, "message": "it is so", "hint": "do this", "traceback": "there"}
            channel.send({"id": ident, "type": "error", "error": error})
        elif kind == "kill_server":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        else:
            if "learns" in str(msg.get("candidate")):
                part = {"baselines": {"eager": 41}}
                channel.send({"id": ident, "type": "learned", "learned": part})
            if "calibrates" in str(msg.get("candidate")):
                part = {"calibration": {"version": 1}}
                channel.send({"id": ident, "type": "learned", "learned": part})
            try:
                result = judging(kind, msg, config, fds)
            except BlockingIOError:
                result, error = None, {"kind": "busy", "message": "a stranger", "hint": "end it"}
                channel.send({"id": ident, "type": "error", "error": error})
            except ValueError as e:
                result, error = None, {"kind": "invalid", "message": str(e), "hint": "mend it"}
                channel.send({"id": ident, "type": "error", "error": error})
            except ConnectionError:
                result, error = None, {"kind": "ill", "message": "it is lost"}
                channel.send({"id": ident, "type": "error", "error": error})
            except MemoryError:
                result, error = None, {"kind": "no_room", "message": "too large", "hint": "smaller"}
                channel.send({"id": ident, "type": "error", "error": error})
            if result is not None and msg.get("shares") and msg.get("time", True):
                two_phases(channel, msg, result, config, fds)
            if result is not None:
                channel.send({"id": ident, "type": "result", "result": result})
        for fd in fds:
            os.close(fd)


def two_phases(channel: Channel, msg: dict, result: dict, config: dict, fds: list[int]) -> None:
    """An evaluation that has a share of the device, and then all of it. The file "phases" in the
    cache folder tells what came after what; "meets" waits until the file "together" says that so
    many are verified at once.
    """
    cache, words = config["cache_dir"], msg["candidate"]["source"].split()

    def told(what: str) -> None:
        with open(os.path.join(cache, "phases"), "a") as f:
            f.write(what + "\n")

    told("+verify")
    if "meets" in words:
        with (
            open(os.path.join(cache, "met." + words[-1]), "w"),
            open(os.path.join(cache, "together")) as f,
        ):
            together = int(f.read())
        late = time.monotonic() + 120
        while sum(n.startswith("met.") for n in os.listdir(cache)) < together:
            assert time.monotonic() < late, "the others do not come"
            time.sleep(0.001)
    told("-verify")
    if result["verdict"]["status"] != "correct":
        return
    while fds:
        os.close(fds.pop())
    channel.send({"id": msg["id"], "type": "alone"})
    given, has = channel.recv()
    assert given["type"] == "given"
    fds += has
    if "tells" in words:
        result["verdict"]["output"] = f"given {given.get('baselines')}"
    told("+alone")
    if "die_alone" in words:
        os._exit(1)
    told("-alone")


def judging(kind: str, msg: dict, config: dict, fds: list[int]) -> dict | None:
    """The requests of an evaluation.

    The source says what becomes of it, a word at a time: "die" kills the referee,
    "die_once" only the first time, "sick" leaves a machine that fails everything, "large" takes
    more memory than there is, "busy" meets a stranger on the device, "busy_once" only
    the first time, and "lost" and "lost_once" a device that does not work.
    """
    cache = config.get("cache_dir", "")

    def read(source: str) -> dict[str, object]:
        words = source.split()
        said = "" if "broken" in words else " ".join(words)
        return {"normalised_hash": said, "language": "cpp"}

    def mark(name: str) -> int:
        if not cache:  # a server without torch has none, and keeps no count
            return 1
        with open(os.path.join(cache, "count." + name), "a+") as f:
            f.write("x")
            f.flush()
            return f.tell()

    if kind in ("parse", "inspect", "evaluate", "baselines", "ceilings", "build_ahead"):
        mark(kind)
        if os.path.exists(os.path.join(cache, "count.sick")) and kind != "ceilings":
            os._exit(1)
    # The file "hangs" in the cache folder is of a device that does not answer.
    if kind in ("inspect", "evaluate") and os.path.exists(os.path.join(cache, "hangs")):
        time.sleep(3600)
    source = msg.get("source") or (msg.get("candidate") or {}).get("source") or ""
    words = source.split()
    if kind == "parse":
        return {**read(source), "problems": []}
    if kind == "ceilings":
        # The file "deaths" in the cache folder says how often measuring dies.
        if os.path.exists(os.path.join(cache, "deaths")):
            with open(os.path.join(cache, "deaths")) as f:
                if os.path.getsize(os.path.join(cache, "count.ceilings")) <= int(f.read()):
                    os._exit(1)
        ceilings = {
            "memory_gbs": 10.0,
            "cache_gbs": 50.0,
            "fp32_gflops": 100.0,
            "call_us": 1.0,
            "threads": 2,
            "measured_at": os.path.getsize(os.path.join(cache, "count.ceilings")),
        }
        # The file "busy" in the cache folder holds memory's rate on a machine that is.
        spread = 0.01
        if os.path.exists(os.path.join(cache, "busy")):
            with open(os.path.join(cache, "busy")) as f:
                ceilings["memory_gbs"], spread = float(f.read()), 0.6
        return {"ceilings": ceilings, "specs": {}, "spread": spread}
    lost = "lost" in words or ("lost_once" in words and mark("lost_once") == 1)
    if kind in ("inspect", "evaluate") and lost:
        raise ConnectionError
    if kind == "inspect":
        if "die" in words or ("die_once" in words and mark("die_once") == 1):
            os._exit(1)
        return {
            "task": {
                "fingerprint": " ".join(words),
                "inputs": [{"shape": [2], "dtype": "float32"}],
                "operations": 7,
                "graph": {"nodes": []},
                "graph_note": "",
                "flags": ["ill_conditioned"],
                "notes": [f"{msg['threads']} threads"],
            }
        }
    if kind == "evaluate":
        if "die" in words or ("die_once" in words and mark("die_once") == 1):
            os._exit(1)
        if "sick" in words:
            mark("sick")
            os._exit(1)
        if "large" in words:
            raise MemoryError
        if "busy" in words or ("busy_once" in words and mark("busy_once") == 1):
            raise BlockingIOError
        if "hang" in words:
            time.sleep(3600)
        status = "timed_out" if "slow" in words else "crashed" if "crash" in words else "correct"
        build = {"form": "native", "seconds": 0.1}
        if "compile_error" in words:
            build["errors"] = [{"line": 3, "message": "expected ;"}]
            status = "build_failed"
        verdict = {
            "status": status,
            "reason": "so",
            "metrics": {"threads": msg["threads"]},
            "build": build,
            "cost_s": {"build": 0.1},
            "output": " ".join([msg["precision"], *msg["want_baselines"]]),
            "evidence": [str(msg["known"]), str(len(fds))],
        }
        if "fast" in words and msg.get("time", True):
            verdict["speedup"] = {"value": 2.0, "low": 1.5, "high": 2.5, "against": "eager"}
        if msg.get("time_baselines"):
            verdict["baselines"] = dict.fromkeys(msg["want_baselines"], 2.0)
        learned = {"calibration": None, "baselines": {"eager": mark("learned")}}
        if msg.get("profile") and status == "correct":
            verdict["profile"] = {"tool": msg["profile"], "launches": 1, "ms": 0.5}
            learned["profile"] = {"tool": "ncu"}
        return {
            "verdict": verdict,
            "learned": learned,
            "passing": "passing" in words,
            "at_rest": "at_rest" in words and not msg.get("last"),
            # The last of what comes next is not read yet.
            "parsed": [read(c["source"]) for c in (msg.get("upcoming") or [])[:-1]] + [None],
        }
    if kind == "baselines":
        measured = {n: {"median_ms": 2.0, "samples": [2.0]} for n in msg["want_baselines"]}
        return {"baselines": measured, "learned": {"calibration": None, "baselines": {"eager": 17}}}
    if kind == "build":
        report = {"form": "native", "seconds": 0.1}
        built = {"status": "built", "reason": "", "triton": False, "build": report}
        return {"builds": [{**built, "arch": arch} for arch in msg["archs"]]}
    if kind == "build_ahead":
        if "broken" in (msg.get("reference") or "").split():
            raise ValueError("it is not Python")
        if "die_ahead" in words:
            os._exit(1)
        report = {"form": "native", "seconds": 0.1, "cached": False, "flags": ["-O9 was dropped"]}
        said = {"status": "", "reason": "", "language": "cpp", "missing": [], "build": report}
        if "compile_error" in words:
            report["errors"] = [{"line": 3, "message": "expected ;"}]
            said |= {"status": "build_failed", "reason": "so"}
        fingerprint = (msg.get("reference") or "").strip()
        return {**said, "fingerprint": fingerprint, "cutlass": "", "seconds": 0.1}
    if kind == "export":
        return {"source": "# standalone\n" + source}
    if kind == "doctor":
        return {
            "sandbox": {"mode": "strict", "missing": ["landlock"]},
            "cuda": "13.0",
            "checks": [
                {"name": n, "ok": True, "note": "here", "cost": ""} for n in ("compiler", "torch")
            ],
        }
    return None


def main() -> None:
    control = Channel.of_fd(3)
    if MODE == "no_torch":
        raise ModuleNotFoundError("No module named 'torch'")
    if MODE == "slow":
        time.sleep(0.5)
    if MODE == "never_ready":
        time.sleep(3600)
    if MODE == "flood":
        for n in range(20_000):
            print(f"line {n}", file=sys.stderr)
        print("x" * 1_000_000, file=sys.stderr)
    versions = {"python": "3", "torch": "double"}
    control.send({"type": "ready", "versions": versions, "pid": os.getpid()})
    children: dict[int, int] = {}
    while True:
        try:
            msg, fds = control.recv(0.02)
        except Closed:
            if MODE == "stubborn":
                time.sleep(3600)
            for pid in children.values():
                os.kill(pid, signal.SIGKILL)
            return
        except Exception:
            msg, fds = {"type": "none"}, []
        if msg["type"] == "spawn" and MODE == "no_spawn":
            control.send({"type": "failed", "id": msg["id"], "message": "no more processes"})
        elif msg["type"] == "spawn":
            pid = os.fork()
            if pid == 0:
                code = 0
                try:
                    referee(Channel.of_fd(fds[0]), msg["config"])
                except Closed:
                    pass
                except BaseException as e:
                    print(repr(e), file=sys.stderr)
                    code = 1
                os._exit(code)
            children[msg["id"]] = pid
            control.send(
                {"type": "spawned", "id": msg["id"], "pid": pid, "mode": "trusted", "missing": []}
            )
            if MODE == "dies_after_spawn":
                os._exit(9)
        elif msg["type"] == "kill" and MODE != "deaf":
            os.kill(children[msg["id"]], signal.SIGKILL)
        for fd in fds:
            os.close(fd)
        for ident, child in list(children.items()):
            pid, _ = os.waitpid(child, os.WNOHANG)
            if pid:
                del children[ident]
                event = {"type": "exited", "id": ident, "pid": pid, "code": None, "signal": None}
                control.send({**event, "reason": "exited", "log": ""})


main()
