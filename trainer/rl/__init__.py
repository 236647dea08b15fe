"""Training of policies: supervised, by rejection, and by PPO, on plain PyTorch and transformers.

Each stage is a program, ``python -m rl.STAGE --config FILE`` with this package's parent folder on
PYTHONPATH; the file is JSON, its keys are the fields of the stage's Settings. With more processes:
``torchrun --nproc-per-node N -m rl.STAGE --config FILE``; ``workers`` is a torchrun whose workers
end with it.

- ``tiny``: a policy from nothing.
- ``bootstrap``: supervised, on pairs of a prompt and an answer.
- ``ppo``: PPO, single- and multi-turn, on the episode API or on trajectories.
- ``collect``: a policy plays episodes and is not trained.
- ``answers``: a policy answers prompts, and nothing is judged.
- ``rft``: supervised, on rewarded trajectories.
- ``critic``: a critic, fitted to collected trajectories.

A stage writes to the folder ``out``: ``policy`` (and ``critic``) at its end, ``checkpoints``,
``metrics.jsonl``, ``tensorboard``, and PPO ``trajectories``. Started again, it goes on from the
newest checkpoint that is whole, to the same bits on a CPU.

``serve`` is no stage: it serves a policy, by OpenAI's protocol.

Standard output has one line of JSON an event, by its key ``event``: ``start``, ``step`` (``step``,
``steps``, ``metrics``), ``note`` (``text``), ``checkpoint``, ``end``, ``error`` (``kind``,
``reason``, ``hint``, ``exit``). What libraries print goes to standard error.

Exit codes: 0 done · 1 a fault of this program · 2 bad input: settings, model folder, trajectories,
a second trainer · 3 stopped by a guard: a loss that is not finite, or collapse; the last good
checkpoint is kept · 4 the environment or the sampler died or cannot be reached; it can go on later
· 5 out of memory, after the micro-batch was halved · 6 the disk is full or cannot be written ·
7 stopped on request (SIGTERM, SIGINT): the step was finished and saved. torchrun ends with 1
whenever a process fails: the line of the event ``error`` has the code as ``exit``.
"""
