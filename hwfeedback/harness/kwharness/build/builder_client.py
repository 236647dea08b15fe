"""The referee's side of building: sandboxed builders do the work, this trusted side keeps the
results (object_cache.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from kwharness.base.built import Artifact, BuildResult, CompilerReport, Failed, Made
from kwharness.base.configs import BuilderConfig, CandidateConfig
from kwharness.base.for_builder import Export, Exported, Facts, First, Parse, ReadFacts, ReadFirst
from kwharness.base.requests import Candidate, NamedBaseline
from kwharness.base.verdicts import BuildReport, Diagnostic, Kernel, Read
from kwharness.build import diagnostics, forbidden, forms, object_cache, reports
from kwharness.build.build_process import (
    IMPORT_TIMEOUT,
    Maker,
    NoAnswer,
    Progress,
    Raised,
    Sees,
    answered,
    ask,
    compiler_of,
    recorded,
)
from kwharness.build.form import (
    LOAD_INLINE,
    NATIVE,
    BuildFailed,
)
from kwharness.clients.errors import (
    WorkerError,
    WorkerGone,
    WorkerLate,
    sentence,
)
from kwharness.clients.workshop import Workshop, sources_of
from kwharness.machine import toolchain
from kwharness.process import policy
from kwharness.process.fork_client import ForkServer, Worker
from kwharness.torch_compile import inductor

PARSE_TIMEOUT = 20.0
FACTS_TIMEOUT = 60.0
# Whether a candidate of which something fails is imported, where it is built.
NO_TRIAL, TRIAL, ALONE = "", "trial", "alone"
EARLY = "early"  # nothing of the candidate is run: what takes that is not known


def parse(server: ForkServer, text: str, what: str, mode: str = "strict") -> Read:
    """What source.parse says of a text, from a sandboxed worker. A text that kills its parser has a
    problem saying so.
    """
    worker = server.spawn(BuilderConfig(mode))
    try:
        return _parsed(worker, text, what)
    except NoAnswer as e:
        return Read("", forms.NONE, problems=[f"reading the source: {e}"])
    finally:
        worker.kill()  # nobody need wait until it is gone


def _parsed(worker: Worker, text: str, what: str) -> Read:
    """Raises NoAnswer where its parser is dead."""
    try:
        said = answered(worker, Parse(text, what), Read, PARSE_TIMEOUT)
    except Raised as e:
        said = Read("", forms.NONE, problems=[f"reading the source fails: {e}"])
    return reports.parsed_source(said, (*forms.KINDS, forms.NONE))


def export(
    server: ForkServer, text: str, mode: str = "strict", about: Mapping[str, object] | None = None
) -> str:
    """The standalone form of a candidate, with what its user has to know of it where that is given.
    Raises ValueError for one that is not Python.
    """
    request = Export(text, None if about is None else dict(about))
    with server.spawn(BuilderConfig(mode)) as worker:
        try:
            return answered(worker, request, Exported, PARSE_TIMEOUT).source
        except Raised as e:
            raise ValueError(f"the candidate cannot be exported: {e}") from e
        except NoAnswer as e:
            raise ValueError(f"reading the source: {e}") from e


def build(
    server: ForkServer,
    candidate: Candidate | NamedBaseline,
    cache_dir: str,
    device: str = "cpu",
    mode: str = "strict",
    progress: Progress | None = None,
    arch: str = "",
    *,
    trial: str = TRIAL,
    forbids: bool = False,
    keeps: bool = True,
) -> BuildResult:
    """Builds what a candidate asks for when it is imported, or finds it built.

    ``arch`` is what CUDA is compiled for, as "sm_90a"; without it there is no CUDA. ``trial``:
    whether a candidate of which something fails is imported, so that it is known at once where it
    does not go on (TRIAL), for whatever reason (ALONE), or whether that is left to whoever runs it
    (NO_TRIAL). With EARLY the status "" says that it takes more to know what it comes to.
    ``forbids``: whether what policy forbids fails. ``keeps``: whether what it comes to is kept, as
    anything is but what is tried for an explanation.

    Raises for the machine's faults alone: toolchain.Missing, policy.SandboxError and ProtocolError.
    """
    start = time.monotonic()
    text = candidate.source
    key = object_cache.build_key(text, device, arch, forbids)
    record_path = object_cache.path_in(cache_dir, "builds", key + ".json")
    if (known := object_cache.kept_build(record_path)) is not None:
        known.build.cached, known.build.seconds = True, time.monotonic() - start
        return known
    language = (isinstance(candidate, Candidate) and candidate.language) or "cpp"
    result = BuildResult(BuildReport(form=forms.NONE), "", "", [], "", language, [], [])
    note = progress or (lambda _: None)
    warm = bool(arch) and _seems_launched(text)  # NVRTC, which takes as long as reading a text
    maker = partial(Maker, server, cache_dir, mode, arch, text, note, warm)
    shop, failed = Workshop(maker, object_cache.opened), None
    note("reading the candidate")
    try:
        if warm:
            shop.begin()
        compiles = trial != EARLY and not forbids and inductor.compiles(text)
        config = _with_torch(mode, cache_dir, device) if compiles else BuilderConfig(mode)
        runs = _Runs(forbids, config, compiles, trial == EARLY)
        bad = _build_ahead(server, text, result, shop, runs)
        if trial not in (NO_TRIAL, EARLY) and (bad or shop.failures):
            _try(server, text, arch, shop, trial, runs)
    except Failed as e:
        failed = e
    finally:
        shop.leave()
    _add_made(result, text, shop.made)
    if failed is not None:
        result.fail(failed)
    result.build.seconds = time.monotonic() - start
    keeps = keeps and (trial != EARLY or result.status != "")
    if keeps and result.status in object_cache.KEPT and not isinstance(failed, _Breach):
        object_cache.write_json(record_path, result.to_json())
    return result


def workshop(
    server: ForkServer,
    text: str,
    made: Sequence[Made],
    cache_dir: str,
    mode: str = "strict",
    arch: str = "",
    *,
    whole: bool = False,
) -> Workshop:
    """Returns where the processes of a candidate ask for what it builds later than ``made``.
    ``whole``: what ``load_inline`` is given is built as torch builds it (torch_extension.py).
    """

    def maker() -> Maker:
        return Maker(server, cache_dir, mode, arch, text, lambda _: None, whole=whole)

    shop = Workshop(maker, object_cache.opened)
    for m in made:
        if not whole or m.request["kind"] != LOAD_INLINE:
            shop.know(m)
    return shop


def add_reports(report: BuildReport, text: str, made: Sequence[Made]) -> list[str]:
    """Adds what compilers said of what was made, and returns what became of flags."""
    vectorised, missed = list(report.vectorised or ()), list(report.missed or ())
    errors, kernels = list(report.errors or ()), list(report.kernels or ())
    logs: list[str | None] = [report.log]
    notes: list[str] = []
    for m in made:
        notes += m.request.get("notes", ())
        if m.failed is not None:
            errors += m.failed.errors
            logs.append(m.failed.log)
        elif m.report != CompilerReport():
            lines = reports.Lines(text, sources_of(m.request))
            vectorised += map(lines.diagnostic, m.report.vectorised)
            missed += map(lines.diagnostic, m.report.missed)
            kernels += [k for k in m.report.kernels if k not in (report.kernels or ())]
            logs.append(lines.renumbered(m.report.log))
    report.vectorised = reports.unique(vectorised) or None
    report.missed = reports.unique(missed) or None
    report.errors, report.kernels = reports.unique(errors) or None, kernels or None
    report.log = "\n".join(dict.fromkeys(filter(None, logs)))[: diagnostics.LOG_KEPT] or None
    notes = [n for n in dict.fromkeys(notes) if n not in (report.flags or ())]
    report.flags = [*(report.flags or ()), *notes][: reports.DIAGNOSTICS] or None
    return notes


def facts(
    server: ForkServer, artifacts: Sequence[Artifact], cache_dir: str, mode: str = "strict"
) -> list[Kernel]:
    """Returns what is known of the kernels in a build's objects (sass.py): kept by the object's
    hash. Never raises for what a reader makes of an object: it is then not known.
    """
    paths = [object_cache.path_in(cache_dir, "facts", f"{a.sha256}.json") for a in artifacts]
    known = [object_cache.read_json(p) for p in paths]
    missing = [i for i, k in enumerate(known) if k is None]
    if missing and toolchain.cuobjdump():
        fds = object_cache.open_all(artifacts[i] for i in missing)
        try:
            said = _facts(server, fds, mode)
        finally:
            object_cache.close_all(fds)
        if len(said) == len(missing):
            for i, kernels in zip(missing, said, strict=True):
                known[i] = kept = {"kernels": [k.to_json() for k in reports.resources(kernels)]}
                object_cache.write_json(paths[i], kept)
    return [k for each in known if each for k in reports.resources(each.get("kernels"))]


def _facts(server: ForkServer, fds: Sequence[int], mode: str) -> list[Any]:
    """Returns what is known of the kernels of each object, nothing where no answer comes."""
    with compiler_of(server, Sees(cuda=True), mode) as worker:
        try:
            answer, more = ask(worker, ReadFacts(), Facts, FACTS_TIMEOUT, fds)
        except NoAnswer:
            return []
        object_cache.close_all(more)
        return answer.kernels


def with_facts(kernels: Sequence[Kernel], known: Sequence[Kernel]) -> list[Kernel]:
    """Returns what the compiler said of kernels with what their objects say beside it."""
    told = {k.name: k.to_json() for k in known}
    both = [Kernel.from_json(told.pop(k.name, {}) | k.to_json()) for k in kernels]
    return [*both, *(k for k in known if k.name in told)][: reports.DIAGNOSTICS]


def _add_made(result: BuildResult, text: str, made: list[Made]) -> None:
    """Adds what was asked for when it was imported."""
    if made:
        kinds = {m.request["kind"] for m in made}
        result.build.form = LOAD_INLINE if kinds == {LOAD_INLINE} else NATIVE
    result.made = made
    result.artifacts = [m.artifact for m in made if m.artifact is not None]
    cutlass = (m.request.get("cutlass") for m in made)
    result.cutlass = next(filter(None, cutlass), "")
    add_reports(result.build, text, made)


def _seems_launched(text: str) -> bool:
    return "__global__" in text and "<<<" not in text


class _Runs(NamedTuple):
    """How a candidate's Python runs before it is judged."""

    forbids: bool  # what policy forbids fails
    config: BuilderConfig  # of its process
    compiles: bool  # by torch.compile
    early: bool = False  # it does not


def _with_torch(mode: str, cache_dir: str, device: str) -> BuilderConfig:
    """Returns the configuration of a process in which torch.compile may be at work."""
    from kwharness.machine import device as devices  # which needs torch: EARLY may have none

    kind = devices.class_of(device.partition(":")[0])
    folder = inductor.warm(cache_dir) if kind.warm_inductor else ""
    return BuilderConfig(mode, preimport=["compile"], inductor_cache=folder)


def _build_ahead(
    server: ForkServer,
    text: str,
    result: BuildResult,
    shop: Workshop,
    runs: _Runs,
) -> bool:
    """Builds what the candidate asks for at the top of its file where all of it compiles: a guess,
    which spares its processes to wait for each. Returns whether it is a bad one. Where it is early
    the candidate is not run, and only what it builds first is built.

    Raises Failed for a text that is no candidate, and for one whose first source does not compile.
    """
    with server.spawn(runs.config) as worker:
        result.missing = worker.missing
        try:
            parsed = _parsed(worker, text, "candidate")
        except NoAnswer as e:
            raise Failed("rejected", f"reading the source: {e}") from e
        result.normalised_hash = parsed.normalised_hash
        result.language = parsed.language or result.language
        result.build.form = parsed.form
        if parsed.problems:
            raise Failed(
                "build_failed" if not parsed.normalised_hash else "rejected",
                parsed.problems[0],
                "\n".join(parsed.problems),
                [reports.diagnostic_of(p) for p in parsed.problems],
            )
        result.called = parsed.called
        if forms.built(parsed.form) is None:
            return False  # nothing to build yet: importing it is the candidate worker's business
        _build_first(worker, text, shop)
        if runs.early:
            return False
        requests, error = recorded(worker, text, runs.forbids)
    for raw in requests:
        try:
            made = shop.get(raw)[1]
        except Failed:
            return True
        if made.failed is not None:
            return True  # what it asks for then is another matter
    if not (error or parsed.lazy):
        # Objects, and every byte of the Python that calls them.
        sources = [s for m in shop.made for s in sources_of(m.request)]
        objects = (a.sha256 for a in shop.artifacts)
        result.build.code = toolchain.key(reports.beside(text, sources), *objects)
    return error


def _build_first(worker: Worker, text: str, shop: Workshop) -> None:
    """Builds what the candidate surely has built first, where its text tells. Raises Failed where
    that fails: importing it would come to the same.
    """
    try:
        first = answered(worker, ReadFirst(text), First, PARSE_TIMEOUT)
    except NoAnswer:
        return
    if first.request is None:
        return
    failed = shop.get(first.request)[1].failed
    if failed is not None:
        raise failed


def _try(
    server: ForkServer,
    text: str,
    arch: str,
    shop: Workshop,
    trial: str,
    runs: _Runs,
) -> None:
    """Imports a candidate, which asks for what it has built as it does wherever it runs. Raises
    Failed where that is the end of it.

    There is no device here. So on a GPU, unless this is all that is asked, only what that has
    nothing to do with is the end. One that may compile runs where programs may be started.
    """
    # Here, for who runs no candidate has no torch.
    from kwharness.clients.candidate_client import CandidateClient

    if runs.compiles:
        worker = server.spawn(replace(runs.config, runs=True))
    else:
        worker = server.spawn(CandidateConfig(runs.config.sandbox))
    client = CandidateClient(worker, IMPORT_TIMEOUT)
    doing = "importing the candidate"
    given = shop.artifacts
    fds = object_cache.open_all(given)
    try:
        client.load(
            text, [a.asked() for a in given], fds, threads=1, timeout=IMPORT_TIMEOUT,
            workshop=shop, elsewhere=bool(arch), forbids=runs.forbids,
        )  # fmt: skip
    except WorkerLate:
        raise Failed("timed_out", f"{doing}: it took longer than {IMPORT_TIMEOUT:g} s") from None
    except WorkerGone as e:
        if e.client is None:
            raise policy.SandboxError(f"a worker {e}") from None
        raise Failed("crashed", f"{doing}: its process {e}") from None
    except WorkerError as e:
        if (why := not_built(e, shop.failures)) is not None:
            raise why from None
        if not arch or trial == ALONE or e.type in (forbidden.NotAllowed.__name__, "SyntaxError"):
            raise _no_import(e, shop.failures) from None
    finally:
        client.kill()
        object_cache.close_all(fds)


class _Breach(Failed):
    """It breaks the policy, which is a setting: another may let it pass."""


def not_built(e: WorkerError, failures: Sequence[Failed]) -> Failed | None:
    """Returns which failed build an error is of, None for another error."""
    if e.type != BuildFailed.__name__ or not failures:
        return None
    first = e.message.partition("\n")[0]
    return next((f for f in failures if f.reason.startswith(first)), failures[-1])


def _no_import(e: WorkerError, failures: Sequence[Failed]) -> Failed:
    """Returns what it means that a candidate cannot be imported."""
    what = sentence(f"{e.type}: {e.message}")
    line = e.lines[-1] if e.lines else 0
    where = f" at line {line}" if line else ""
    breach = e.type == forbidden.NotAllowed.__name__
    before = f"{told(failures)}; then " if failures else ""
    return (_Breach if breach else Failed)(
        "rejected" if breach else "build_failed",
        f"{before}importing the candidate fails{where}: {what}",
        e.traceback,
        [Diagnostic(line, what)],
    )


def told(failures: Sequence[Failed]) -> str:
    """Returns what is said first of a candidate of which something was not built."""
    more = f", and {len(failures) - 1} more of its extensions are not built"
    return failures[0].reason[: reports.MAX_TOLD] + (more if len(failures) > 1 else "")
