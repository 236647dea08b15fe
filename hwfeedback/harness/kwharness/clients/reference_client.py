"""The referee's side of the reference's worker."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.tensors import DTYPES, Layout
from kwharness.clients import client, errors
from kwharness.clients.batch_parts import Parts
from kwharness.machine.device import CPU, Device
from kwharness.model import weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.model.state import NOTHING, Carried

# Modes of a forward whose tensors are inputs.
GIVE_INPUTS = ("aim", "decides")
_SPECS = [{"dtype": str, "shape": [int]}]
# A content that is moved at construction, the weights that hold it, and how often it came to be.
_BREAK = {"digest": str, "prints": [float], "bytes": int, "scale": float, "times": int}
_BREAK |= {"names": [str]}
_LOADED = {"names": [str], "state": _SPECS, "trainable": [bool], "training": bool}
_LOADED |= {"moved": [bool], "tied": [int], "constants": list}
_LOADED |= {"arguments": [str], "init": dict, "breaks": [_BREAK]}
_SIGNATURE = {"names": [str], "keywords": [str], "defaults": dict, "any": bool}
_LOADED |= {"forward": _SIGNATURE, "constructor": _SIGNATURE}
_INSPECTED = {"inputs": _SPECS, "input_names": [str], "outputs": _SPECS, "operators": [str]}
_INSPECTED |= {"operations": int, "unkept": [str], "shared": [str], "linear": bool}
_INSPECTED |= {"eager_ms": float, "lengths": [int], "products": [int]}


def _wide(modes: Sequence[str]) -> bool:
    """Whether one mode is asked for, which computes in float64."""
    return len(modes) == 1 and modes[0].partition(":")[0] in ("wide", "noise", "moved")


class ReferenceClient(client.Client):
    """The reference worker."""

    def __init__(self, worker: errors.Spawned, timeout: float = 60.0, device: Device = CPU) -> None:
        super().__init__(worker, device)
        self.timeout = timeout
        self.key = ""  # processes of the same key are alike
        self.warm = False  # it has served an evaluation before
        self.info: dict[str, Any] = {}
        self.seed = CONSTRUCTION_SEED  # under which it is constructed
        self.breaks: list[str] = []  # weights that are moved as it is constructed
        self._making = 1  # threads, as it is constructed
        self.init: list[torch.Tensor] = []
        self.carried = NOTHING
        # A task so large that as little of its memory is held as can be: one mode after the other,
        # in blocks that are gone when nobody needs their tensors any more.
        self.sparing = False
        self.parts: Parts | None = None  # in which float64 is computed, on inputs that fit
        self._parts: Parts | None = None  # of the forward that is asked for
        self.had_parts = False  # a forward was computed in parts since it was loaded
        self._keeping = False  # see ``keeping``
        self._room = {"out0": 0, "out1": 0, "draw": 0}
        self._lent: tuple[list[torch.Tensor], Layout] | None = None  # see ``lend``
        self._modes: list[str] = []
        self._later: list[str] = []  # modes that are asked for one by one
        self._request: dict[str, Any] = {}
        self._out = "out0"

    def load(
        self,
        source: str,
        *,
        threads: int,
        eval_mode: bool,
        seed: int = CONSTRUCTION_SEED,
        breaks: Sequence[str] = (),
        making: int = 0,
    ) -> None:
        """``making``: threads with which a candidate is constructed, if these are others: what
        factorises a matrix gives other bits with others.
        """
        self.parts, self.had_parts = None, False
        self.carried = NOTHING
        self._making = making or threads
        # Part by part, so that whoever waits knows for what.
        msg: dict[str, Any] = {"op": "import", "source": source, "threads": threads}
        self.ask(msg, timeout=self.timeout, doing="importing the file")
        self.ask({"op": "init_inputs"}, timeout=self.timeout, doing="get_init_inputs()")
        self.construct(seed, eval_mode=eval_mode, breaks=breaks)

    def construct(self, seed: int, *, eval_mode: bool, breaks: Sequence[str] = ()) -> None:
        """Has Model constructed under a seed: anew, where it was before. ``breaks``: the names of
        weights of which what every construction gives them is moved.
        """
        msg = {"op": "construct", "seed": seed, "eval": eval_mode, "breaks": list(breaks)}
        msg["threads"] = self._making
        self.info, fds = self.ask(
            msg, timeout=self.timeout, doing="Model's constructor", fds_wanted=1
        )
        self.seed, self.breaks = seed, list(breaks)
        with self._understood():
            self.init = client.private(self.device, fds, self.info)
            errors.check_shape(self.info, _LOADED)
            trees.build(self.info["init"], self.init)
            count = len(self.info["names"])
            each = ("state", "trainable", "moved", "tied", "constants")
            if any(len(self.info[n]) != count for n in each):
                raise ValueError("names and weights do not match")
            if any(first > i for i, first in enumerate(self.info["tied"])):
                raise ValueError("weights that are tied to later ones")

    def weights(self, state: Sequence[torch.Tensor]) -> weights.Reference:
        """Returns what there is to be taken, as it was constructed."""
        entries = weight_entries(self.info["names"], state, self.info["constants"])
        return weights.Reference(entries, self.info["moved"], self.info["tied"], self.carried.names)

    def carry(self, carried: Carried) -> None:
        """Has what the model carries from call to call behind its inputs and its outputs."""
        self.carried = carried
        msg = {"op": "carry", "carried": carried.to_json()}
        self.ask(msg, timeout=self.timeout, doing="Model's state")

    def hold(self, fds: Sequence[int]) -> None:
        """Has it keep these descriptors open, and no others."""
        self.ask({"op": "hold"}, fds, timeout=self.timeout)

    def draw(
        self, seed: int, *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[torch.Tensor]]:
        """Returns the tree and the tensors of one draw. What is carried is behind them: ``last``, a
        state from which a position soon comes round.
        """
        tree, draws = self.draws([seed], reseeded=reseeded, last=last)
        return tree, draws[0]

    def draws(
        self, seeds: Sequence[int], *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[list[torch.Tensor]]]:
        """Returns the tree of all draws, and the tensors of each. ``reseeded``: what get_inputs()
        seeds by itself gets these seeds, too.
        """
        request = {"op": "draw", "seeds": list(seeds), **self._into("draw")}
        request |= {"reseeded": reseeded, "last": last}
        self._release()
        msg, fds = self.ask(request, timeout=self.timeout, doing="get_inputs()", fds_wanted=1)
        with self._understood():
            if fds:
                tensors = client.private(self.device, fds, msg, self.sparing)
            else:
                views = self._blocks["draw"].views(msg["layout"])
                tensors = views if self.sparing else [v.clone() for v in views]
            errors.check_shape(msg, {"tree": dict, "orders": [[int]]})
            self.orders = msg["orders"]
            each, rest = divmod(len(tensors), len(seeds))
            if rest:
                raise ValueError("draws of different numbers of tensors")
            draws = [tensors[i * each : (i + 1) * each] for i in range(len(seeds))]
            for draw in draws:
                trees.build(msg["tree"], draw)
                if self.carried and len(draw) != self.carried.given + len(self.carried.names):
                    raise ValueError("a draw of other tensors")
        if fds and not self._passing:
            self._room["draw"] = self.block("draw", msg["size"]).size
        return msg["tree"], draws

    def state(self) -> list[torch.Tensor]:
        msg, fds = self.ask(
            {"op": "state"}, timeout=self.timeout, doing="Model's state_dict()", fds_wanted=1
        )
        with self._understood():
            tensors = client.private(self.device, fds, msg)
            if len(tensors) != len(self.info["names"]):
                raise ValueError("names and weights do not match")
        return tensors

    def inspect(self, seed: int) -> dict[str, Any]:
        """Returns what one forward on a draw shows."""
        msg, _ = self.ask(
            {"op": "inspect", "seed": seed}, timeout=self.timeout, doing="Model's forward"
        )
        with self._understood():
            errors.check_shape(msg, _INSPECTED)
            if len(msg["inputs"]) != len(msg["input_names"]):
                raise ValueError("inputs and names do not match")
            carried = msg["carried"] = Carried.from_json(msg.get("carried"))
            if (carried.given, carried.returned) != (len(msg["inputs"]), len(msg["outputs"])):
                raise ValueError("state beside other inputs and outputs")
        return msg

    def compiled(self) -> int:
        """Returns a descriptor of what torch.compile has made in it, the caller's to close, or -1:
        its own word, for processes of the same file alone.
        """
        _, fds = self.ask({"op": "compiled"}, timeout=self.timeout, fds_wanted=1)
        return fds[0] if fds else -1

    def precompiled(self, fd: int) -> None:
        """Gives it what another process of the same file has compiled."""
        self.ask({"op": "precompiled"}, [fd], timeout=self.timeout)

    def set_state(self, state: Sequence[torch.Tensor]) -> None:
        if state:
            layout = self.put("state", state)
            msg = {"op": "set_state", "layout": layout}
            self.ask(msg, timeout=self.timeout, doing="changing Model's weights")

    def kill(self) -> None:
        self._lent = None
        super().kill()

    def lend(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns inputs as they lie in memory that the reference has, too, where memory is spared:
        a forward on them copies nothing. They hold until the next are lent.
        """
        if not self.sparing:
            return list(inputs)
        self._lent = None
        self._replace("in")
        layout = self.put("lent", inputs, orders=self.orders)
        views = self._blocks["lent"].views(layout)
        self._lent = views, layout
        return list(views)

    def _given(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Has the inputs in the reference's memory, and says where."""
        if self._lent is not None:
            views, layout = self._lent
            if len(views) == len(inputs) and all(map(operator.is_, views, inputs)):
                self._replace("in")
                return {"in": "lent", "layout": layout}
        return {"in": "in", "layout": self.put("in", inputs, orders=self.orders)}

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
        **more: Any,
    ) -> None:
        """``more``: ``decided``: simulated rounding and moved inputs change no decision; ``free``:
        the inputs that an aim may change (decisions.py).
        """
        self._request = {"op": "forward", "tree": tree, "sources": sources, **self._given(inputs)}
        self._request |= more
        self._parts = self.parts if self.parts is not None and self.parts.fit(inputs) else None
        self._later = list(modes[1:]) if self.sparing else []
        self._ask_modes(modes[:1] if self.sparing else modes)

    def _ask_modes(self, modes: Sequence[str]) -> None:
        self._modes = list(modes)
        self._out = "out1" if self._out == "out0" else "out0"
        msg = {"modes": self._modes, "out": self._out, **self._into(self._out), **self._request}
        parts = self._parts
        if parts is not None and self._passing and _wide(modes):
            msg |= {"cut": parts.cut, "parts": parts.count}
            self.had_parts = True
            if self.device.free_bytes() < parts.room:
                self._release()
        else:
            self._release()
        self.begin(msg, (), self.timeout, "Model's forward")

    def _into(self, block: str) -> dict[str, Any]:
        """Says where tensors go: a block that is used again has no room where memory is spared."""
        return {"room": 0 if self._passing else self._room[block], "sparing": self._passing}

    @property
    def _passing(self) -> bool:
        """Whether blocks are gone when nobody needs their tensors."""
        return self.sparing and not self._keeping

    def _release(self) -> None:
        if self._passing:
            self.device.release()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Has nothing computed in parts."""
        parts, self.parts = self.parts, None
        try:
            yield
        finally:
            self.parts = parts

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Has blocks used again, although memory is spared: a draw is there until the next draw
        inside this, an answer until the next but one. ``let_go`` gives the blocks back.
        """
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False

    def give_back(self) -> None:
        """Has it keep no free memory."""
        self.ask({"op": "release"}, timeout=self.timeout)

    def let_go(self) -> None:
        """Gives back the blocks that were kept, and the memory that its process keeps."""
        self._lent = None
        self._keeping = False
        self.drain(self.timeout)
        if self.sparing:
            kept = [name for name, room in self._room.items() if room]
            self._room.update(dict.fromkeys(kept, 0))
            self._replace(*kept, "in", "lent")
            self.give_back()
            self._release()

    def finish_forward(self) -> list[dict[str, Any]]:
        """Returns a dict per mode: ``error``, or ``tensors``, ``sources``, ``tree``, ``aliases``.

        The tensors live in memory shared with the reference and hold until the next but one
        forward ends, or for as long as they are needed where memory is spared; no candidate ever
        sees that memory.
        """
        results = self._finish_modes()
        for mode in self._later:
            self._ask_modes([mode])
            results += self._finish_modes()
        first: list[torch.Tensor] = next((r["tensors"] for r in results if "tensors" in r), [])
        return [self._of_shapes(first, r) for r in results]

    def _of_shapes(self, first: Sequence[torch.Tensor], answer: dict[str, Any]) -> dict[str, Any]:
        """Returns a mode's answer, an error where its shapes are others than the first mode's:
        rounding moves values, and shapes with them.
        """
        error = reshaped(first, answer["tensors"]) if "tensors" in answer else None
        if error is None:
            return answer
        error.client = self
        return {"mode": answer["mode"], "error": error}

    def _finish_modes(self) -> list[dict[str, Any]]:
        msg, fds = self.finish(1)
        with self._understood():
            if fds:
                tensors = client.private(self.device, fds, msg, self.sparing)
            else:
                tensors = self._blocks[self._out].views(msg["layout"])
            results = self._results(msg, tensors)
        if fds and not self._passing and self._room[self._out] < msg["size"]:
            # As large as the other: modes that give less alternate with some that give more.
            size = max(msg["size"], self._room["out0"], self._room["out1"])
            self._room[self._out] = self.block(self._out, size).size
        return results

    def _results(self, msg: dict[str, Any], tensors: list[torch.Tensor]) -> list[dict[str, Any]]:
        """Returns the modes that were asked for, in that order."""
        errors.check_shape(msg, {"results": [{"mode": str}]})
        if [r["mode"] for r in msg["results"]] != self._modes:
            raise ValueError("other modes than were asked for")
        results: list[dict[str, Any]] = []
        for r in msg["results"]:
            if "error" in r:
                error = errors.WorkerError(r["error"], self)
                error.stage = error.stage or "forward"
                if error.ill:  # which is no mode's own
                    raise error
                results.append({"mode": r["mode"], "error": error})
                continue
            errors.check_shape(
                r, {"at": int, "count": int, "sources": list, "aliases": list, "tree": dict}
            )
            own = tensors[r["at"] : r["at"] + r["count"]]
            n = len(r["sources"])
            if len(own) != r["count"] or n > len(own) or not all(map(errors.is_int, r["aliases"])):
                raise ValueError("a result without its tensors")
            gives_inputs = r["mode"].partition(":")[0] in GIVE_INPUTS
            if self.carried and n != self.carried.all and not gives_inputs:
                raise ValueError("a result without its state")
            trees.build(r["tree"], own[:n])
            sources: list[dict[str, Any] | None] = []
            for s in r["sources"]:
                if s is not None:
                    errors.check_shape(s, {"at": int})
                    s = {**s, "values": own[s["at"]]}
                sources.append(s)
            results.append({**r, "tensors": own[:n], "sources": sources})
        return results

    def forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
    ) -> list[dict[str, Any]]:
        """The same at once; the tensors are the caller's."""
        self.begin_forward(tree, inputs, modes, sources=sources)
        results = self.finish_forward()
        for r in results:
            if "error" not in r and not self.sparing:
                r["tensors"] = [t.clone() for t in r["tensors"]]
                r["sources"] = [
                    None if s is None else {**s, "values": s["values"].clone()}
                    for s in r["sources"]
                ]
        return results

    def decides(self, tree: Any, inputs: Sequence[torch.Tensor]) -> int:
        """Returns how many operators decide in a forward (decisions.py), 0 where it raises."""
        self.begin_forward(tree, inputs, ["decides"])
        answer = self.finish_forward()[0]
        with self._understood():
            errors.check_shape(answer, {} if "error" in answer else {"decisions": int})
        return int(answer.get("decisions", 0))

    def aimed(
        self, tree: Any, inputs: Sequence[torch.Tensor], free: Sequence[int], seed: int
    ) -> list[torch.Tensor] | None:
        """Returns inputs of which elements are moved to where the forward decides, of those among
        ``free`` alone; None where it decides on nothing that is made of these.
        """
        self.begin_forward(tree, inputs, [f"aim:{seed}"], free=list(free))
        answer = self.finish_forward()[0]
        if "error" in answer:
            if errors.ran_out(answer["error"]):
                raise answer["error"]
            return None
        found: list[torch.Tensor] = [t.clone() for t in answer["tensors"]]
        with self._understood():
            if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in inputs]:
                raise ValueError("inputs of another form than those that it was given")
        return found

    def each(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        decided: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Mode by mode, with sources, as finish_forward returns it: nothing is held of one when
        the next comes, where memory is spared. ``decided`` as in ``begin_forward``.
        """
        if not self.sparing:
            self.begin_forward(tree, inputs, modes, sources=True, decided=decided)
            yield from self.finish_forward()
            return
        first: list[torch.Tensor] = []
        for mode in modes:
            [r] = self.forward(tree, inputs, [mode], sources=True)
            if not first and "tensors" in r:
                first = [t.to("meta") for t in r["tensors"]]
            yield self._of_shapes(first, r)
            del r  # or it is still there while the next answer is made


def weight_entries(
    names: Sequence[str], state: Sequence[torch.Tensor], constants: Sequence[Any]
) -> list[weights.Entry]:
    def number(c: Any) -> float | None:
        whole = isinstance(c, int) and abs(c) < 1 << 53
        return float(c) if whole or isinstance(c, float) else None

    found = zip(names, state, constants, strict=True)
    return [weights.Entry(n, t, number(c)) for n, t, c in found]


def like_spec(spec: dict[str, Any]) -> torch.Tensor:
    """Returns a tensor without content, of which a worker has said what it is."""
    if len(spec["shape"]) > client.MAX_DIMS or math.prod(spec["shape"]) > client.MAX_OUTPUT:
        raise ValueError("a weight that no memory holds")
    try:
        return torch.empty(spec["shape"], dtype=DTYPES[spec["dtype"]], device="meta")
    except RuntimeError as e:
        raise ValueError("a weight of no shape") from e


def reshaped(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> errors.WorkerError | None:
    """Returns what is wrong with a reference that gives tensors of other shapes another time."""
    message = ""
    if len(tensors) != len(others):
        message = (
            f"has a number of outputs that depends on values: {len(tensors)}, then {len(others)}"
        )
    for i, (a, b) in enumerate(zip(tensors, others, strict=False)):
        if a.shape != b.shape and not message:
            found = f"output {i} has {list(a.shape)}, then {list(b.shape)}"
            message = f"has a shape that depends on values: {found}"
    if not message:
        return None
    return errors.WorkerError({"stage": "output_shape", "type": "ValueError", "message": message})
