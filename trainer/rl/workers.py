"""torchrun, whose workers end when it does, however it ends: it starts them in sessions of their
own, so that no signal to its process group reaches them.

    python -m rl.workers --standalone --nproc-per-node N -m rl.STAGE --config FILE
"""

from __future__ import annotations

import ctypes
import os
import signal

AGENT = "KERNELWRIGHT_AGENT"  # the process id of torchrun, for its workers
PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, and ends it at once where the parent,
    of that process id, has ended already.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_with_agent() -> None:
    """Has a worker of this program end with it. Other processes stay as they are."""
    agent = os.environ.get(AGENT)
    if agent:
        end_with(int(agent))


if __name__ == "__main__":
    os.environ[AGENT] = str(os.getpid())
    from torch.distributed.run import main

    main()
