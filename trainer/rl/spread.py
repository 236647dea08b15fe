"""States of weights that FSDP2 has spread over processes. Importing it takes a second of processor
time, for ``torch.distributed.checkpoint``: who has one process never does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as states

_WHOLE = states.StateDictOptions(full_state_dict=True)


def model_state(module: nn.Module) -> dict[str, Tensor]:
    """Returns the whole weights."""
    return states.get_model_state_dict(module, options=_WHOLE)


def optimiser_state(module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the whole state of an optimiser."""
    return dict(states.get_optimizer_state_dict(module, optimiser, options=_WHOLE))


def load_optimiser(
    module: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Gives each process its part of what optimiser_state returned."""
    states.set_optimizer_state_dict(module, optimiser, state, options=_WHOLE)
