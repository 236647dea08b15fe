"""What a candidate's process runs."""

from __future__ import annotations

from dataclasses import dataclass

from kwharness.base.built import Artifact, BuildResult
from kwharness.build.form import LOAD_INLINE
from kwharness.clients.workshop import Workshop
from kwharness.model import weights
from kwharness.referee.context import Context
from kwharness.torch_compile import called_languages, inductor
from kwharness.torch_compile.called_language import CalledLanguage


@dataclass
class Program:
    """The candidate, or a named baseline."""

    text: str  # as it was given
    source: str  # as it is loaded: the exported file where it is certified
    build: BuildResult | None = None
    workshop: Workshop | None = None  # where its processes ask for more
    plan: weights.Plan | None = None  # how it gets the reference's weights
    handed_out: bool = False  # whether it is the file that its user gets

    @property
    def built(self) -> BuildResult:
        """What its build came to."""
        assert self.build is not None, "it is not built yet"
        return self.build

    def artifacts(self) -> list[Artifact]:
        """What was built for it, so far."""
        built = list(self.build.artifacts) if self.build is not None else []
        if self.handed_out:  # what torch builds is built again, as it does
            built = [a for a in built if a.kind != LOAD_INLINE]
        known = {a.request for a in built}
        later = self.workshop.artifacts if self.workshop is not None else []
        return built + [a for a in later if a.request not in known]

    @property
    def form(self) -> str:
        """How its custom code is written: BuildReport.form."""
        return self.built.build.form or ""

    def called(self, context: Context, *, runs: bool = True) -> list[CalledLanguage]:
        """Returns the languages of its kernels that compile when they are called, of those that the
        device runs, or of the others.
        """
        on_cores = context.device.on_cores
        found = called_languages.named(self.built.called)
        return [language for language in found if (language.on_cores == on_cores) == runs]

    def torch_compiles(self, context: Context) -> bool:
        """Whether torch.compile may be at work in it."""
        return context.torch_may_compile() and inductor.compiles(self.source)

    def compiles_when_called(self, context: Context) -> bool:
        return bool(self.called(context)) or self.torch_compiles(context)
