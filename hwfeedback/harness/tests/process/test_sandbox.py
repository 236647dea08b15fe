"""The escape suite: what each profile must not be able to do, tried by code that runs inside."""

from __future__ import annotations

import errno
import itertools
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from process_layer import FORKS_OFTEN, ask, obedient_harness, obedient_server

from kwharness.base import paths
from kwharness.base.configs import BY_ROLE, BuilderConfig, CandidateConfig, Place, ReferenceConfig
from kwharness.base.protocol import Closed
from kwharness.machine import toolchain
from kwharness.process import audit, fork_client, linux, policy, sandbox, seccomp
from kwharness.process.audit import Listener
from kwharness.standalone import sanitizers

PROFILES = ["reference", "candidate", "builder", "profiler"]
DENIED = (1, 13)  # EPERM, EACCES


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    client, process = obedient_server(tmp_path_factory.mktemp("server"), more=FORKS_OFTEN)
    yield client
    assert client.ping().threads == 1, "the fork server must stay single-threaded"
    client.close()
    assert process.wait(120) == 0


# Those that run foreign code on a GPU are let do a little more.
ON_GPU = [f"{p} on a GPU" for p in PROFILES if p != "builder"]


@pytest.fixture(params=[*PROFILES, *ON_GPU])
def worker(request, server):
    profile, _, gpu = request.param.partition(" on ")
    with server.spawn(BY_ROLE[profile](sandbox="weak", place=Place(gpu=0 if gpu else None))) as w:
        w.profile, w.gpu = profile, bool(gpu)
        yield w


def needs(worker, *names: str) -> None:
    lacking = set(names) & set(worker.missing)
    if lacking:
        pytest.skip(f"this machine gives no {lacking}")


SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(*args):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(a) for a in args])
    return ctypes.get_errno() if result == -1 else 0
"""


def test_network(worker):
    ask(worker, "import os, socket")
    for family in ("AF_INET", "AF_INET6", "AF_NETLINK", *([] if worker.gpu else ["AF_UNIX"])):
        with pytest.raises(RuntimeError, match=r"PermissionError|OSError"):
            ask(worker, f"socket.socket(socket.{family}, socket.SOCK_DGRAM)")
    if worker.gpu:  # CUDA listens on one; nobody can connect to it
        ask(worker, "s = socket.socket(socket.AF_UNIX); s.bind('\\0mine'); s.listen()")
        ask(worker, "open('/proc/self/task/' + str(os.getpid()) + '/comm', 'w').write('cuda')")
        with pytest.raises(RuntimeError, match="PermissionError"):
            ask(worker, "socket.socket(socket.AF_UNIX).connect('\\0mine')")
    assert ask(worker, "a, b = socket.socketpair(); b.send(b'x'); r = a.recv(1).decode()") == "x"
    needs(worker, "network namespace", "own /proc")
    devices = ask(worker, "r = [l.split(':')[0].strip() for l in open('/proc/net/dev')][2:]")
    assert set(devices) <= {
        "lo",
        "sit0",
        "ip6tnl0",
        "tunl0",
        "gre0",
        "gretap0",
        "erspan0",
        "ip_vti0",
        "ip6_vti0",
        "ip6gre0",
    }


@pytest.mark.parametrize("to", ["real", "absolute", "through"])
def test_what_is_shown_may_lie_behind_a_link(server, tmp_path, to):
    """A data folder that was moved to another disk, say."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "inner" / "file").write_text("seen")
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "through").symlink_to("absolute")
    folder = tmp_path / to / "inner"
    with server.spawn(ReferenceConfig(sandbox="weak", read_only=[str(folder)])) as w:
        for place in (folder, tmp_path / "real" / "inner"):
            assert ask(w, f"r = open({str(place / 'file')!r}).read()") == "seen"


def test_home_and_host_files_cannot_be_read(worker, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("seed")
    for path in (
        secret,
        pathlib.Path.home() / ".bashrc",
        pathlib.Path("/etc/shadow"),
        pathlib.Path("/var/log"),
    ):
        with pytest.raises(RuntimeError, match=r"FileNotFound|Permission|NotADirectory"):
            ask(
                worker,
                f"import os; r = os.listdir({str(path)!r}) if os.path.isdir({str(path)!r}) else open({str(path)!r}).read()",  # noqa: E501
            )


@pytest.mark.parametrize(
    "path", ["/x", "/usr/x", "/etc/x", "/dev/x", "/proc/x", "/proc/sys/kernel/core_pattern"]
)
def test_system_cannot_be_written(worker, path):
    with pytest.raises(RuntimeError, match=r"OSError|Permission|FileNotFound"):
        ask(worker, f"open({path!r}, 'w').write('x')")


def test_harness_cannot_be_written(worker):
    with pytest.raises(RuntimeError, match=r"OSError|Permission"):
        ask(worker, "import kwharness as k; open(k.__file__, 'a').write('x')")


def test_tmp_is_private_and_limited(worker):
    needs(worker, "mount namespace")
    assert ask(worker, "import os; r = os.getcwd()") == "/tmp"
    ask(worker, "open('/tmp/mine', 'w').write('x')")
    assert not os.path.exists("/tmp/mine")
    with pytest.raises(RuntimeError, match="OSError"):
        ask(
            worker,
            "f = open('/dev/shm/big', 'wb')\nfor _ in range(1200): f.write(bytes(1 << 20)); f.flush()",  # noqa: E501
        )


def test_other_processes_are_invisible(worker):
    needs(worker, "pid namespace", "own /proc")
    pids = ask(worker, "import os; r = [int(p) for p in os.listdir('/proc') if p.isdigit()]")
    assert pids == [1]
    with pytest.raises(RuntimeError, match="ProcessLookupError"):
        ask(worker, f"import os; os.kill({os.getpid()}, 0)")


def test_debugging_is_denied(worker):
    numbers = {
        "ptrace": (16, 1),
        "process_vm_readv": (1, 0, 0, 0, 0, 0),
        "process_vm_writev": (1, 0, 0, 0, 0, 0),
        "kcmp": (1, 1, 0, 0, 0),
    }
    ask(worker, SYSCALL)
    column = 0 if os.uname().machine == "x86_64" else 1
    for name, arguments in numbers.items():
        number = seccomp._DENIED[name][column]
        assert ask(worker, f"r = errno_of({number}, *{arguments})") in DENIED, name


def test_privileged_calls_are_denied(worker):
    ask(worker, SYSCALL)
    column = 0 if os.uname().machine == "x86_64" else 1
    for name, numbers in seccomp._DENIED.items():
        if worker.gpu and name in ("bind", "listen"):
            continue  # harmless without connect; socket(0) is of no family that it may have
        assert ask(worker, f"r = errno_of({numbers[column]}, 0, 0, 0, 0, 0, 0)") in DENIED, name
    new_user = 0x10000000
    assert (
        ask(worker, f"r = errno_of({seccomp._CLONE[column]}, {new_user} | 17, 0, 0, 0, 0)")
        in DENIED
    )
    assert ask(worker, f"r = errno_of({seccomp._CLONE3[column]}, 0, 0)") == 38
    assert ask(worker, "r = libc.prctl(1, 0, 0, 0, 0)") == -1, "it must die with the server"


def test_no_privileges_are_left(worker):
    text = ask(worker, "r = open('/proc/self/status').read()")
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert ask(worker, "import os; r = os.getuid()") != 0
    assert ask(worker, "import resource; r = resource.getrlimit(resource.RLIMIT_CORE)[1]") == 0


def test_environment_holds_nothing_of_ours(worker):
    passed = ("CUDA_HOME", "LD_LIBRARY_PATH")  # where the machine has its driver and toolkit
    names = [n for n in ask(worker, "import os; r = sorted(os.environ)") if n not in passed]
    settings = policy.Settings("candidate", gpu=0 if worker.gpu else None)
    assert names == sorted(set(sandbox.environment(settings, "/tmp")) - set(passed))


def test_descriptors_are_few(worker):
    fds = ask(
        worker,
        "import os; r = [os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{f}')]",  # noqa: E501
    )
    assert len(fds) == 4, fds  # the standard three and its channel
    assert sum(f.startswith("socket:") for f in fds) == 1


def test_programs(worker):
    run = "import subprocess; r = subprocess.run(['/bin/echo', 'hi'], capture_output=True, text=True).stdout"  # noqa: E501
    if policy.PROFILES[worker.profile].execute:
        assert ask(worker, run) == "hi\n"
        return
    with pytest.raises(RuntimeError, match="PermissionError"):
        ask(worker, run)
    with pytest.raises(RuntimeError, match="PermissionError"):
        ask(worker, "import os; os.fork()")
    with pytest.raises(RuntimeError, match="PermissionError"):
        ask(worker, "import os; os.execv('/bin/echo', ['echo'])")
    assert (
        ask(
            worker,
            "import threading; t = threading.Thread(target=print); t.start(); t.join(); r = 1",
        )
        == 1
    )


def test_memory_that_no_limit_counts(worker):
    ask(worker, SYSCALL)
    column = 0 if os.uname().machine == "x86_64" else 1
    may = policy.PROFILES[worker.profile].execute or worker.gpu
    for name, numbers in seccomp._UNCOUNTED.items():
        refused = ask(worker, f"r = errno_of({numbers[column]}, 0, 1, 0o600)") in DENIED
        assert refused != may, name


def test_no_thread_sleeps_where_it_cannot_be_stopped(worker):
    if policy.PROFILES[worker.profile].execute:
        pytest.skip("programs are started that way")
    ask(worker, SYSCALL)
    number = seccomp._CLONE[0 if os.uname().machine == "x86_64" else 1]
    # A filter comes before the arguments, which make no sense: the signals of another memory.
    sharing = 0x00010000 | 0x00000800
    assert ask(worker, f"r = errno_of({number}, {sharing}, 0, 0, 0, 0)") == errno.EINVAL
    assert ask(worker, f"r = errno_of({number}, {sharing} | 0x4000, 0, 0, 0, 0)") in DENIED


BOMB = """
import os, threading, time
made = 0
try:
    while made < 5000:
        if {fork}:
            if os.fork() == 0:
                time.sleep(60); os._exit(0)
        else:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        made += 1
except (OSError, RuntimeError):
    pass
r = made
"""


POOLS = """
import os, threading, torch
def parallel():
    torch.set_num_threads(130)
    torch.zeros(1 << 23).add_(1)
parallel()
done, over = threading.Event(), threading.Event()
other = threading.Thread(target=lambda: (parallel(), done.set(), over.wait()))
other.start()
done.wait(120)
r = len(os.listdir("/proc/self/task"))
over.set()
other.join()
"""


@pytest.mark.parametrize("profile", ["reference", "candidate"])
def test_pools_of_threads_have_room_on_a_machine_of_many_cores(server, profile):
    with server.spawn(BY_ROLE[profile]("weak", 130)) as many:
        assert ask(many, POOLS) > 256


def test_process_bomb_is_limited_and_swept(server, worker):
    needs(worker, "pid namespace", "user namespace")
    fork = policy.PROFILES[worker.profile].execute
    limit = 40
    with server.spawn(
        BY_ROLE[worker.profile](sandbox="weak"), limits=policy.Limits(processes=limit)
    ) as bomb:
        assert ask(bomb, BOMB.format(fork=fork)) <= limit
        inside = bomb.pid
        bomb.kill()
        assert bomb.wait(120) is not None
        assert not os.path.exists(f"/proc/{inside}")


def test_memory_bomb(server, worker):
    with server.spawn(
        BY_ROLE[worker.profile](sandbox="weak"), limits=policy.Limits(memory_bytes=256 << 20)
    ) as bomb:
        with pytest.raises(RuntimeError, match=r"MemoryError|RuntimeError"):
            ask(bomb, "import torch; x = torch.ones(1 << 28)")
        with pytest.raises(RuntimeError, match="MemoryError"):
            ask(bomb, "x = bytearray(1 << 30)")
        assert ask(bomb, "x = bytearray(1 << 26); r = len(x)") == 1 << 26


def test_a_huge_file_is_cut_off(server, worker):
    needs(worker, "mount namespace")
    room = "import os; s = os.statvfs({path!r}); r = s.f_blocks * s.f_frsize"
    profile = policy.PROFILES[worker.profile]
    assert ask(worker, room.format(path="/tmp")) == profile.tmp_bytes
    assert ask(worker, room.format(path="/dev/shm")) == profile.shm_bytes
    write = "f = open({path!r}, 'wb')\nfor _ in range(10 << 10): f.write(bytes(1 << 20)); f.flush()"
    limit = 64 << 20
    with server.spawn(
        BY_ROLE[worker.profile](sandbox="weak"), limits=policy.Limits(tmp_bytes=limit)
    ) as small:
        for path, most in (("/tmp/huge", limit), ("/dev/shm/huge", profile.shm_bytes)):
            with pytest.raises(RuntimeError, match="OSError"):
                ask(small, write.format(path=path), 120)
            assert ask(small, f"import os; r = os.path.getsize({path!r})") <= most
            ask(small, f"f.close(); os.unlink({path!r})")


def test_the_parent_cannot_be_looked_into(worker):
    needs(worker, "pid namespace", "own /proc")
    assert ask(worker, "import os; r = os.getppid()") == 0, "its parent is out of sight"
    for path in (f"/proc/{os.getpid()}", "/proc/0", "/proc/2"):
        with pytest.raises(RuntimeError, match=r"FileNotFound|ProcessLookup|NotADirectory"):
            ask(worker, f"r = open({path!r} + '/environ', 'rb').read()")
    mine = ask(worker, "r = open('/proc/1/environ', 'rb').read().decode().split(chr(0))")
    names = {e.partition("=")[0] for e in mine if e}
    assert not names & {
        "KERNELWRIGHT_DATA_DIR",
        "HOME",
        "AWS_SECRET_ACCESS_KEY",
        "ANTHROPIC_API_KEY",
    }


def test_signals_reach_nobody_else(server, worker):
    needs(worker, "pid namespace")
    with server.spawn(CandidateConfig(sandbox="weak")) as other:
        ask(
            worker,
            "import os, signal\nfor pid in (-1, 0, *range(2, 2000)):\n"
            "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass\n"
            "try: os.killpg(0, signal.SIGKILL)\nexcept OSError: pass",
        )
        assert ask(other, "r = 1") == 1
    assert server.ping().workers >= 1


def test_what_one_worker_leaves_the_next_does_not_find(server, worker):
    needs(worker, "mount namespace")
    folders = "import os, tempfile; r = [os.environ['TORCH_EXTENSIONS_DIR'], os.environ['TORCHINDUCTOR_CACHE_DIR'], tempfile.gettempdir(), '/dev/shm', os.environ['HOME']]"  # noqa: E501
    for folder in ask(worker, folders):
        ask(
            worker,
            f"os.makedirs({folder!r}, exist_ok=True); open({folder!r} + '/left', 'w').close()",
        )
        with server.spawn(BY_ROLE[worker.profile](sandbox="weak")) as following:
            assert not ask(following, f"import os; r = os.path.exists({folder!r} + '/left')")


def test_the_store_and_the_caches_cannot_be_reached(worker, tmp_path):
    data = tmp_path / "data"
    (data / "cache" / "objects").mkdir(parents=True)
    for name in ("kernelwright.db", "cache/objects/some.so", "leases"):
        path = data / name
        if not path.exists():
            path.write_text("x")
        path.chmod(0o644)
        with pytest.raises(RuntimeError, match=r"FileNotFound|Permission"):
            ask(worker, f"open({str(path)!r})")
        with pytest.raises(RuntimeError, match=r"OSError|FileNotFound|Permission"):
            ask(worker, f"open({str(path)!r}, 'w')")


def test_the_streams_that_it_inherits_are_only_a_log(server):
    forged = '{"missing": [], "pid": 1, "contained": true}\n'
    with server.spawn(CandidateConfig(sandbox="weak")) as w:
        ask(
            w,
            f"import os\nfor fd in range(3, 64):\n    if fd != channel._sock.fileno():\n"
            f"        try: os.write(fd, {forged!r}.encode())\n        except OSError: pass\n"
            f"for fd in (1, 2): os.write(fd, {forged!r}.encode())",
        )
        assert w.log().count("contained") == 2
        assert ask(w, "r = 1") == 1
    assert server.ping().threads == 1


def test_its_time_cannot_be_stretched(worker):
    for code in (
        "import os; os.nice(-5)",
        "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    ):
        with pytest.raises(RuntimeError, match="PermissionError"):
            ask(worker, code)
    with pytest.raises(RuntimeError, match=r"ValueError|PermissionError|OSError"):
        ask(
            worker, "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20))"
        )


def test_processor_time_is_limited(server):
    with server.spawn(CandidateConfig(sandbox="weak"), limits=policy.Limits(cpu_s=1)) as w:
        w.channel.send({"code": "while True: pass"})
        end = w.wait(120)
        assert end is not None and end.signal in (signal.SIGKILL, signal.SIGXCPU)


def test_who_is_killed_for_others_is_blameless(server):
    # The kernel may kill a small worker because others hold the memory; a person may kill any.
    with server.spawn(CandidateConfig(sandbox="weak")) as w:
        assert ask(w, "r = 1") == 1
        os.kill(w.pid, signal.SIGKILL)
        end = w.wait(120)
    # Without a namespace of its own it may have done it itself.
    expected = "oom" if "pid namespace" in w.missing else "foreign"
    assert end.reason == expected and end.blameless == (expected == "foreign")
    # One that had filled its memory is not.
    limits = policy.Limits(memory_bytes=256 << 20)
    with server.spawn(CandidateConfig(sandbox="weak"), limits=limits) as w:
        assert ask(w, "held = bytearray(128 << 20)\nr = 1") == 1
        os.kill(w.pid, signal.SIGKILL)
        end = w.wait(120)
        assert end.reason == "oom" and not end.blameless


def test_printing_without_end_hurts_nobody(server, worker):
    ask(
        worker,
        "print('first line')\nfor _ in range(100): print('x' * (1 << 20))\nprint('last line', flush=True)",  # noqa: E501
    )
    log = worker.log()
    assert len(log) < 70_000
    assert log.startswith("first line") and log.endswith("last line\n")


def test_a_crash_is_told_apart(server):
    w = server.spawn(CandidateConfig(sandbox="weak"))
    w.channel.send(
        {"code": "import sys, os; print('about to die'); sys.stdout.flush(); os._exit(7)"}
    )
    end = w.wait(120)
    assert (end.code, end.signal, end.reason) == (7, None, "exited")
    assert "about to die" in w.log()
    w = server.spawn(CandidateConfig(sandbox="weak"))
    w.channel.send({"code": "import ctypes; ctypes.string_at(0)"})
    end = w.wait(120)
    assert (end.signal, end.reason) == (signal.SIGSEGV, "signalled")


def test_a_worker_ends_with_its_channel(server):
    w = server.spawn(CandidateConfig(sandbox="weak"))
    w.channel.close()
    assert w.wait(120).code == 0


def test_threads_share_a_connection(server):
    def life(code: int) -> int | None:
        w = server.spawn(CandidateConfig(sandbox="weak"))
        w.channel.send({"code": f"import os; os._exit({code})"})
        return w.wait(120).code

    codes = list(range(1, 13))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(life, codes)) == codes


def test_spawning_leaves_nothing(server):
    for _ in range(5):
        with server.spawn(CandidateConfig(sandbox="weak")) as w:
            assert ask(w, "r = 1") == 1
    assert server.ping().workers == 0


def test_everything_dies_with_the_server(tmp_path):
    client, process = obedient_server(tmp_path)
    workers = [client.spawn(BY_ROLE[p](sandbox="weak")) for p in PROFILES]
    pids = [w.pid for w in workers]
    assert all(os.path.exists(f"/proc/{p}") for p in pids)
    process.kill()
    process.wait(120)
    deadline = time.monotonic() + 120
    while any(alive(p) for p in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(p) for p in pids)
    assert workers[0].wait(120).reason == "lost"
    with pytest.raises((Closed, policy.SandboxError)):
        client.spawn(CandidateConfig(sandbox="weak"))


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_everything_dies_with_the_control_connection(tmp_path):
    client, process = obedient_server(tmp_path)
    pid = client.spawn(CandidateConfig(sandbox="weak")).pid
    client.close()
    assert process.wait(120) == 0
    assert not alive(pid)


def test_strict_refuses_what_weak_names():
    settings = policy.Settings("candidate", "strict")
    with pytest.raises(policy.SandboxError, match=r"pid namespace.*weak"):
        sandbox._require(settings, ["landlock", "pid namespace"])
    sandbox._require(settings, ["landlock"])
    sandbox._require(policy.Settings("candidate", "weak"), ["pid namespace"])


NO_NAMESPACES = """
import sys
sys.path.insert(0, {folder!r})
from kwharness.process import forkserver, linux
def refused(flags):
    raise OSError(1, "not here")
linux.unshare = refused
forkserver.main()
"""


def test_weak_mode_without_namespaces(tmp_path):
    """Landlock, seccomp and limits are left, and what is missing is named."""
    harness = obedient_harness(tmp_path)
    script = harness / "start.py"
    script.write_text(NO_NAMESPACES.format(folder=str(harness)))
    client, process = fork_client.start(script=str(script))
    try:
        with pytest.raises(policy.SandboxError, match="namespace"):
            client.spawn(CandidateConfig(sandbox="strict"))
        with client.spawn(CandidateConfig(sandbox="weak")) as w:
            assert {"mount namespace", "pid namespace", "network namespace"} <= set(w.missing)
            assert "seccomp" not in w.missing
            with pytest.raises(RuntimeError, match="PermissionError"):
                ask(w, "import socket; socket.socket()")
            home = ask(w, "import os, tempfile; r = tempfile.gettempdir()")
            ask(w, "open(os.path.join(tempfile.gettempdir(), 'x'), 'w').write('x')")
            if "landlock" not in w.missing:
                with pytest.raises(RuntimeError, match="Permission"):
                    ask(w, "os.listdir('/root')")
                with pytest.raises(RuntimeError, match="Permission"):
                    ask(w, f"open({str(tmp_path / 'mine')!r}, 'w')")
        assert not os.path.exists(home)
    finally:
        client.close()
        process.wait(120)


AS_USER = """
import os, sys
sys.path.insert(0, {folder!r})
os.setgroups([]); os.setresgid(4242, 4242, 4242); os.setresuid(4242, 4242, 4242)
import ctypes
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
from kwharness.process import forkserver
forkserver.main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user, which only root can")
def test_as_an_ordinary_user(tmp_path):
    """The other way into the namespaces: through a user namespace of one's own."""
    folder = pathlib.Path("/tmp") / f"kernelwright-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        harness = obedient_harness(folder)
        script = harness / "start.py"
        script.write_text(AS_USER.format(folder=str(harness)))
        # The interpreter may live below a home that only root enters: show it in a mount namespace
        # of the test's.
        python = pathlib.Path(sys.base_prefix)
        wrapper = folder / "python"
        closed = next(
            (
                p
                for p in reversed(python.parents)
                if p != pathlib.Path("/") and not p.stat().st_mode & 1
            ),
            None,
        )
        lines = ["#!/bin/sh", "set -e"]
        if closed is not None:
            kept = folder / "kept"
            kept.mkdir()
            lines += [
                f"mount --bind {python} {kept}",
                f"mount -t tmpfs -o mode=755 none {closed}",
                f"mkdir -p {python}",
                f"mount --bind {kept} {python}",
            ]
        lines.append(f'exec {sys.executable} "$@"')
        wrapper.write_text("\n".join(lines) + "\n")
        wrapper.chmod(0o755)
        outer = folder / "outer"
        outer.write_text(f'#!/bin/sh\nexec unshare -m {wrapper} "$@"\n')
        outer.chmod(0o755)
        try:
            client, process = fork_client.start(python=str(outer), script=str(script))
        except Closed:
            pytest.skip("this Python cannot be shown to another user")
        try:
            with client.spawn(BuilderConfig(sandbox="weak")) as w:
                if "mount namespace" in w.missing:
                    pytest.skip("ordinary users get no namespaces here")
                assert w.missing == []
                assert ask(w, "import os; r = os.getuid(), os.getpid(), os.listdir('/tmp')")[
                    :2
                ] == [4242, 1]
                assert (
                    ask(
                        w, "r = [l for l in open('/proc/self/status') if l.startswith('CapEff')][0]"
                    )
                    .split()[1]
                    .strip("0")
                    == ""
                )
                with pytest.raises(RuntimeError, match=r"OSError|Permission"):
                    ask(w, "open('/usr/x', 'w')")
                with pytest.raises(RuntimeError, match=r"FileNotFound|Permission"):
                    ask(w, "open('/etc/hostname').read()")
                assert (
                    ask(
                        w,
                        "import subprocess; r = subprocess.run(['/bin/echo', 'hi'], capture_output=True, text=True).stdout",  # noqa: E501
                    )
                    == "hi\n"
                )
            with client.spawn(CandidateConfig(sandbox="weak")) as w:
                ask(w, "try: open('/root/x')\nexcept OSError: pass")
                w.log()
                assert w.files == ({} if "seccomp" in w.missing else {"/root/x": 1})
        finally:
            client.close()
            process.wait(120)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


REFUSED = {
    "socket": "import socket; socket.socket(socket.AF_INET)",
    "ptrace": SYSCALL + "r = errno_of(101 if platform.machine() == 'x86_64' else 117, 16, 1, 0, 0)",
    "clone": "import os; os.fork()",
    "execve": "import os; os.execv('/bin/true', ['true'])",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "kill": "import os; os.kill(1, 0)",
}


@pytest.mark.parametrize("gpu", [None, 0], ids=["cpu", "gpu"])
def test_what_is_refused_is_named(server, gpu):
    with server.spawn(CandidateConfig(sandbox="weak", place=Place(gpu=gpu))) as w:
        ask(w, "import ctypes, platform; libc = ctypes.CDLL(None)")
        ask(w, "import torch; torch.randn(64, 64) @ torch.randn(64, 64)")
        w.log()
        if not w.refused and "seccomp" in w.missing:
            pytest.skip("this machine gives no seccomp")
        assert not w.refused, "honest code was refused something"
        assert not w.files, "honest code asked for something"
        for name, code in REFUSED.items():
            try:
                ask(w, code)
            except RuntimeError as e:
                assert "PermissionError" in str(e), name
            w.log()
            assert w.refused.get(name) == 1, name
        assert set(w.refused) == set(REFUSED)


HOST = pathlib.Path("/home/somebody")
C_OPEN = "r = libc.open(path.encode(), 0)"
# What a worker asks for -> by which path it is named.
NOT_ITS_OWN = {
    "open(path)": (f"{HOST}/.ssh/id_rsa",) * 2,
    C_OPEN: ("/proc/4194000/environ", "/proc/4194000/environ"),
    "open('../' + path[1:])": (f"{HOST}/.aws/credentials",) * 2,
    "os.chdir('/'); open(path[1:])": ("/var/lib/x", "/var/lib/x"),
    "os.open(path[1:], 0, dir_fd=os.open('/', os.O_PATH))": ("/srv/a/../b", "/srv/b"),
    "os.listdir(path)": (f"//home/{'x' * 5000}/", ""),  # too long for the system itself
    "open(path, 'w')": ("/usr/lib/x.so", "/usr/lib/x.so (to change it)"),
    "open(path, 'rb')": ("/dev/mem", "/dev/mem"),
    "open(path, 'r')": ("/etc/shadow", "/etc/shadow"),
}
ITS_OWN = ["/proc/self/status", "/proc/1/maps", "/tmp/x", "/dev/urandom", "/etc/passwd", "/usr/x"]
ITS_OWN += ["/", os.path.dirname(sys.prefix)]


@pytest.mark.parametrize("gpu", [None, 0], ids=["cpu", "gpu"])
def test_files_that_it_asks_for_are_named(server, gpu):
    with server.spawn(CandidateConfig(sandbox="weak", place=Place(gpu=gpu))) as w:
        if {"seccomp", "mount namespace"} & set(w.missing):
            pytest.skip("this machine gives no sandbox")
        ask(w, "import ctypes, os; libc = ctypes.CDLL(None)")
        for path in ITS_OWN:
            ask(w, f"try: open({path!r})\nexcept OSError: pass")
        ask(w, "open('/tmp/mine', 'w').write('x'); open('/dev/null', 'w').write('x')")
        w.log()
        assert not w.files
        named: set[str] = set()
        for code, (path, name) in NOT_ITS_OWN.items():
            ask(w, f"path = {path!r}\ntry: {code}\nexcept OSError: pass")
            named |= {name} - {""}
            w.log()
            assert set(w.files) == named, code
        assert not w.refused
        ask(w, f"for _ in range(2000): libc.open({str(HOST / 'again').encode()!r}, 0)")
        w.log()
        assert w.files[str(HOST / "again")] == 2000, "asking again and again stays possible"
        ask(w, f"for i in range(100): libc.open(b'{HOST}/%d' % i, 0)")
        w.log()
        assert len(w.files) == audit.MOST_FILES


# What would change a file -> by which paths it is named, below HOST.
CHANGES = {
    "open(host + 'a', 'w')": ["a"],
    "open(host + 'a', 'r+b')": ["a"],
    "os.unlink(host + 'b')": ["b"],
    "os.mkdir(host + 'c')": ["c"],
    "os.rmdir(host + 'd')": ["d"],
    "os.rename('/tmp/mine', host + 'e')": ["e"],
    "os.rename(host + 'f', '/tmp/mine')": ["f"],
    "os.link('/tmp/mine', host + 'g')": ["g"],
    "os.symlink('/tmp/mine', host + 'h')": ["h"],
    "os.truncate(host + 'i', 0)": ["i"],
    "os.chmod(host + 'j', 0o777)": ["j"],
    "os.utime(host + 'k')": ["k"],
    "os.unlink('../' + host[1:] + 'l')": ["l"],
    "libc.renameat2(-100, b'/tmp/x', -100, (host + 'm').encode(), 0)": ["m"],
}


@pytest.mark.parametrize("profile", ["candidate", "reference"])
def test_what_it_would_change_and_whom_it_signals_is_named(server, profile):
    """Of a reference no more than that: what it reads is its own matter."""
    with server.spawn(BY_ROLE[profile](sandbox="weak")) as w:
        if {"seccomp", "mount namespace"} & set(w.missing):
            pytest.skip("this machine gives no sandbox")
        ask(w, "import ctypes, os, tempfile; libc = ctypes.CDLL(None)")
        ask(w, "import torch; torch.randn(64, 64) @ torch.randn(64, 64)")
        own = "with tempfile.TemporaryDirectory() as d: os.rename(d, d + 'x'); os.mkdir(d)"
        ask(w, f"{own}\nopen('/tmp/mine', 'w').write('x'); os.chmod('/tmp/mine', 0o600)")
        w.log()
        assert not w.files and not w.refused
        named: set[str] = set()
        for code, paths in CHANGES.items():
            ask(w, f"host = '{HOST}/'\ntry: {code}\nexcept OSError: pass")
            named |= {f"{HOST}/{p}{audit.TO_CHANGE}" for p in paths}
            w.log()
            assert set(w.files) == named, code
        ask(w, f"try: open('{HOST}/read')\nexcept OSError: pass")
        ask(w, "import signal\ntry: os.kill(1, 0)\nexcept OSError: pass")
        ask(w, "import socket\ntry: socket.socket(socket.AF_INET)\nexcept OSError: pass")
        w.log()
        assert (f"{HOST}/read" in w.files) == (profile == "candidate")
        assert set(w.refused) == {"kill"} | ({"socket"} if profile == "candidate" else set())


def test_listening_for_nothing_does_not_wait(server):
    """Who is told of a call that is gone again, or was another's, must not wait for the next."""
    read, write = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            listener = seccomp.install_filter(policy.PROFILES["candidate"], False)
            socket.send_fds(write, [b"x"], [listener] if listener >= 0 else [])
            time.sleep(60)
        finally:
            os._exit(0)
    _, fds, _, _ = socket.recv_fds(read, 1, 1)
    try:
        if not fds:
            pytest.skip("nobody may listen here")
        refused = Listener(fds[0], policy.Settings("candidate"))
        assert refused.hear() and not refused.refused
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pid = 0
        assert not refused.hear(), "its process is gone"
        refused.close()
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        read.close()
        write.close()


def test_who_is_refused_without_end_is_not_heard_for_ever(server):
    with server.spawn(CandidateConfig(sandbox="weak")) as w:
        tried = (
            "import socket\nr = set()\nfor _ in range(3000):\n"
            "    try: socket.socket(socket.AF_INET)\n    except OSError as e: r.add(e.errno)\n"
            "r = sorted(r)"
        )
        assert set(ask(w, tried)) <= {errno.EPERM, errno.ENOSYS}
        w.log()
        assert w.refused["socket"] <= audit.MOST_REFUSED
        assert ask(w, "r = 1") == 1
    assert server.ping().threads == 1


def test_filter_is_well_formed():
    """Every jump stays inside the program and its end is a return."""
    for profile in policy.PROFILES.values():
        for column, arch in linux.ARCHES.values():
            for cuda, listened, tools in itertools.product((False, True), repeat=3):
                code = seccomp._filter(profile, column, arch, cuda, listened, tools)
                program = [struct.unpack_from("=HBBI", code, i) for i in range(0, len(code), 8)]
                assert len(program) < 4096
                assert program[-1][0] == 0x06
                for i, (op, yes, no, _) in enumerate(program):
                    if op & 7 == 5:
                        assert i + 1 + max(yes, no) < len(program)


def answered(code: bytes, arch: int, number: int) -> int:
    """What a filter answers a call whose arguments are 0."""
    seen = {0: number, 4: arch}
    program = [struct.unpack_from("=HBBI", code, i) for i in range(0, len(code), 8)]
    at = held = 0
    while True:
        op, yes, no, value = program[at]
        at += 1
        if op == 0x06:
            return value
        if op == 0x20:
            held = seen.get(value, 0)
        elif op == 0x54:
            held &= value
        else:
            met = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[op]
            at += yes if met else no


@pytest.mark.parametrize("name", ["connect", "mknodat", "ptrace"])
def test_what_cuda_tries_by_itself_is_refused_and_not_told(name: str) -> None:
    refused = 0x00050000 | errno.EPERM
    for column, arch in linux.ARCHES.values():
        for profile, cuda in itertools.product(policy.PROFILES.values(), (False, True)):
            number = seccomp._DENIED[name][column]
            told = answered(seccomp._filter(profile, column, arch, cuda, True), arch, number)
            silent = profile.named != policy.ALL or (cuda and name != "ptrace")
            assert told == (refused if silent else seccomp._NOTIFY)
            silent = answered(seccomp._filter(profile, column, arch, cuda, False), arch, number)
            assert silent == refused


def test_tools_speak_with_what_they_look_at(server):
    """Named pipes and local sockets, and nothing else that others may not have."""
    with server.spawn(BuilderConfig(sandbox="weak", tools=True)) as w:
        needs(w, "network namespace", "seccomp")
        ask(w, "import os, socket, stat")
        ask(w, "os.mkfifo('/tmp/pipe'); r = stat.S_ISFIFO(os.stat('/tmp/pipe').st_mode); assert r")
        for kind in ("S_IFCHR", "S_IFBLK", "S_IFSOCK", "S_IFREG"):
            with pytest.raises(RuntimeError, match="PermissionError"):
                ask(w, f"os.mknod('/tmp/{kind}', stat.{kind} | 0o600, os.makedev(1, 3))")
        ask(w, "a = socket.socket(socket.AF_UNIX); a.bind('\\0mine'); a.listen()")
        ask(w, "b = socket.socket(socket.AF_UNIX); b.connect('\\0mine'); c, _ = a.accept()")
        assert ask(w, "b.send(b'x'); r = c.recv(1).decode()") == "x"
        for family in ("AF_INET", "AF_INET6", "AF_NETLINK"):
            with pytest.raises(RuntimeError, match="PermissionError"):
                ask(w, f"socket.socket(socket.{family}, socket.SOCK_DGRAM)")
    with server.spawn(BuilderConfig(sandbox="weak")) as w:
        needs(w, "seccomp")
        with pytest.raises(RuntimeError, match="PermissionError"):
            ask(w, "import os; os.mkfifo('/tmp/pipe')")


@pytest.mark.skipif(not toolchain.compute_sanitizer(), reason="there is no compute-sanitizer here")
def test_a_sanitizer_is_started_in_the_sandbox(server):
    """As far as it goes without a GPU: what it starts is heard of, and asks for none."""
    program = toolchain.compute_sanitizer()
    config = BuilderConfig("weak", read_only=[os.path.dirname(program)], tools=True)
    with server.spawn(config) as w:
        needs(w, "network namespace")
        command = [*sanitizers.command(program, "memcheck", "/tmp/report"), "/bin/true"]
        ask(w, f"import subprocess; subprocess.run({command!r})")
        report = ask(w, "r = open('/tmp/report').read()")
        assert "launching" not in report and "before first instrumented API call" in report


def test_the_server_starts_without_our_environment(tmp_path):
    client, process = obedient_server(tmp_path, env={})
    try:
        assert client.ping().threads == 1
    finally:
        client.close()
        process.wait(120)


def test_the_module_is_not_a_program():
    script = "from kwharness.process import forkserver, sandbox"
    folder = paths.ROOT
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stdout and not done.stderr
