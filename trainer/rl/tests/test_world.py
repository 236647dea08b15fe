"""Two processes make of a batch what one makes of it, with whole weights and with spread ones."""

from __future__ import annotations

import multiprocessing.connection
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import tiny_policy

from rl import losses, policy
from rl.batch import Row, number
from rl.guards import Bounds, Guard
from rl.learner import Learner
from rl.settings import Lora, Machine, Optimiser
from rl.stage import Stage
from rl.world import World

PACKAGE = Path(__file__).parents[2]


def rows() -> list[Row]:
    generator = torch.Generator().manual_seed(2)
    out = []
    for n in (6, 9, 4, 12, 7):
        ids = torch.randint(3, 250, (n,), generator=generator).tolist()
        mask = [int(i % 4 != 2) for i in range(n - 2)]
        out.append(Row(ids, 2, mask, [0.0] * (n - 2), [0] * (n - 2)))
    return out


def train(base: Path, parallel: str, out: Path) -> dict[str, Any]:
    """Makes two updates of this process's part of the rows, through a checkpoint, and returns
    gradients and weights.
    """
    machine = Machine(device="cpu", parallel=parallel, micro_tokens=20, threads=1)
    world = World(machine)
    stage = Stage(world, out, lambda _: None)
    learner = make(base, machine, stage)
    mine = rows()[:1] if world.rank else rows()[1:]  # of unlike sizes
    if world.size == 1:
        mine = rows()
    tokens = float(sum(r.count for r in rows()))
    number(mine)
    guard = Guard(Bounds())

    def update(learner: Learner) -> dict[str, torch.Tensor]:
        def loss_of(batch: Any, got: Any) -> torch.Tensor:
            every = torch.ones_like(got[0], dtype=torch.bool)
            weight = torch.sin(batch.targets.float())
            old = got[0].detach() - 0.05
            return losses.policy_loss(got[0], old, weight, every, losses.Clip(), tokens)

        learner.accumulate(mine, loss_of)
        world.add_gradients(learner.parameters())
        found = {}
        for name, p in learner.module.named_parameters():
            assert p.grad is not None
            grad: Any = p.grad
            found[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).clone()
        # apply adds the gradients up itself: only this process's share may be there.
        learner.accumulate(mine, loss_of)
        learner.apply(guard)
        return found

    first = update(learner)
    folder = out / "saved"
    if world.rank == 0:
        folder.mkdir(parents=True)
    world.any(False)
    learner.write(folder, None)
    world.any(False)
    again = make(folder / "actor", machine, stage)
    again.read(folder)
    second = update(again)
    again.write_weights(out / "final", None)
    world.any(False)
    return {"first": first, "second": second, "rank": world.rank, "world": world}


def make(base: Path, machine: Machine, stage: Stage) -> Learner:
    module = policy.Actor(policy.load_actor(base, Lora()))
    return Learner("actor", module, Optimiser(lr=1e-3), machine, stage)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_give_the_gradients_of_one(tmp_path: Path, parallel: str) -> None:
    base = tiny_policy(tmp_path / "base", 8_000)
    one = train(base, "ddp", tmp_path / "one")
    # As torchrun does: the processes meet at a port that is held already.
    meeting = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    paths = f"{PACKAGE}:{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": "2",
        "PYTHONPATH": paths,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    out = tmp_path / "two"
    command = [sys.executable, __file__, str(base), parallel, str(out)]
    started = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, timeout=300)
    assert started.returncode == 0, started.stderr
    two = torch.load(out / "found.pt", weights_only=True)
    for step in ("first", "second"):
        for name, expected in one[step].items():
            assert torch.allclose(two[step][name], expected, rtol=1e-4, atol=1e-6), (step, name)
        assert max(float(x.abs().max()) for x in one[step].values()) > 1e-3
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "one" / "final" / "model.safetensors")
    got = load_file(out / "final" / "model.safetensors")
    assert got.keys() == weights.keys()
    for name, expected in weights.items():
        assert torch.allclose(got[name], expected, rtol=1e-4, atol=1e-5), name


def one_of_two(rank: int, base: Path, parallel: str, out: Path) -> None:
    os.environ["RANK"] = str(rank)
    done = train(base, parallel, out)
    if rank == 0:
        torch.save({k: done[k] for k in ("first", "second")}, out / "found.pt")
    done["world"].close()


if __name__ == "__main__":
    # PyTorch is imported once: these processes are forked before it computes anything.
    fork = multiprocessing.get_context("fork").Process
    given = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    both = [fork(target=one_of_two, args=(rank, *given)) for rank in range(2)]
    for p in both:
        p.start()
    at_work = {p.sentinel: p for p in both}
    while at_work:
        for ended in multiprocessing.connection.wait(list(at_work)):
            p = at_work.pop(ended)
            p.join()
            if p.exitcode:
                at_work.clear()
                break
    for p in both:
        p.kill()  # one waits for another that failed
        p.join()
    sys.exit(any(p.exitcode for p in both))
