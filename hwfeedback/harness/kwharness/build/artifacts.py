"""The worker's side of built objects: ``native``, ``load_inline`` and ``load`` that return what the
builder made.

What this process was not given it asks the referee for, wherever the candidate asks: at the top of
the file, in a constructor, in a forward, on a thread. What does not compile raises, as it does
elsewhere, and may be caught.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import kernelwright
from kwharness.base.built import BuildRequest
from kwharness.base.for_candidate import Build, Built, KnownFailure
from kwharness.base.protocol import Channel, ProtocolError
from kwharness.build import form_extension, forms, headers, used_headers
from kwharness.build.form import BuildFailed, Way
from kwharness.clients.workshop import name_of

_loaded: dict[str, Any] = {}  # what has their functions, by path


class Objects:
    """The built objects of this process, and the referee's end for what else it asks for."""

    def __init__(
        self,
        given: Sequence[BuildRequest] = (),
        fds: Sequence[int] = (),
        failed: Sequence[KnownFailure] = (),
        workshop: int = -1,
    ) -> None:
        """``given`` lie behind ``fds``, which must stay open: objects are loaded through them.
        ``failed``: what is known not to compile. ``workshop``: the descriptor over which others are
        asked for, -1 for none.
        """
        self._paths = {a["request"]: _path(fd) for a, fd in zip(given, fds, strict=True)}
        self._failed = {f.request: f.said for f in failed}
        self._channel = Channel.of_fd(workshop) if workshop >= 0 else None
        self._asking = threading.Lock()  # extensions may be asked for on several threads

    def path(self, request: BuildRequest) -> str:
        """Returns where the object of a request lies. Raises BuildFailed."""
        key = str(request["request"])
        with self._asking:
            if key not in self._paths and key not in self._failed:
                self._ask(key, request)
            if key in self._failed:
                raise BuildFailed(self._failed[key])
            return self._paths[key]

    def fails(self, request: BuildRequest) -> None:
        """Raises BuildFailed for what is known not to compile."""
        if said := self._failed.get(str(request["request"])):
            raise BuildFailed(said)

    def _ask(self, key: str, request: BuildRequest) -> None:
        if self._channel is None:
            raise BuildFailed(f"{name_of(request)} was not built")
        try:
            self._channel.send(Build(request).asked(), timeout=None)
            msg, fds = self._channel.recv()
            answer = Built.from_json(msg)
        except ProtocolError as e:
            raise BuildFailed(f"{name_of(request)} cannot be asked for: {e}") from None
        if fds:
            self._paths[key] = _path(fds[0])
        elif answer.built:
            self._paths[key] = ""  # nobody loads it here
        else:
            self._failed[key] = answer.said or "it does not compile"


class Noted(Objects):
    """Objects that are not there yet: what is asked for is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[BuildRequest] = []

    def path(self, request: BuildRequest) -> str:
        self.requests.append(request)
        return ""


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def of_file(text: str, *, handed_out: bool = False) -> None:
    """Has sources include our headers as they may in this candidate's file: those that it names.
    ``handed_out``: it brings what it needs, and what torch builds of it keeps its name.
    """
    form_extension.begin(headers.Handed(), whole=handed_out)
    kernelwright.headers.clear()
    if handed_out or "kw/" not in text:
        return
    try:
        kernelwright.headers.update(used_headers.of_file(text))
        form_extension.begin(headers.Handed(text), whole=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # whoever imports it says why


def install(objects: Objects) -> None:
    """Has every form return these objects."""
    _loaded.clear()
    forms.replace(Way(objects.path, None, _loaded))


def record(objects: Objects) -> Recorder:
    """Has every form have things built and return stand-ins: for a process without the device that
    the objects are for.
    """
    recorder = Recorder()
    forms.replace(Way(objects.path, lambda: _StandIn(recorder)))
    return recorder


def stand_in(objects: Objects) -> None:
    """Has every form return what does nothing, whatever it is asked for that is not known to fail.

    A candidate that is right all the same does not need its custom code.
    """

    def nothing(request: BuildRequest) -> str:
        objects.fails(request)
        return ""

    forms.replace(Way(nothing, lambda: _StandIn(Recorder())))


def functions() -> dict[str, Any]:
    """Returns the functions of what has been loaded, by name."""
    found: dict[str, Any] = {}
    for holder in list(_loaded.values()):
        for name, value in vars(holder).items() if not isinstance(holder, str) else ():
            if not name.startswith("_") and callable(value):
                while name in found:  # another extension has one of this name
                    name += "'"
                found[name] = value
    return found


class Recorder:
    """Notes whether a function of a stand-in was called."""

    called = False


class _StandIn:
    """An object whose every function and kernel does nothing: there is nothing to run yet."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(self._recorder)


class _Nothing:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getitem__(self, _: Any) -> _Nothing:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        self._recorder.called = True
