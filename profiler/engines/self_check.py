"""Self-check of a model that is being added, by the agent's program."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from synergai.errors import BackendMissing, EngineUnusable
from synergai.models.warmup import ADVICE

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.descriptions import EngineDescription
    from synergai.models.directory import EngineDefinition
    from synergai.models.formats.inspect import ModelDescription


class StagedCheck:
    """Loads a staged engine as an agent does, and keeps the result."""

    def __init__(self, *, enabled: bool) -> None:
        self.result = "not checked"
        self.notes: tuple[str, ...] = ()
        self._enabled = enabled
        self._description: EngineDescription | None = None

    def __call__(self, models: Path, name: str, model: ModelDescription) -> None:
        """Check the engine `name` in the directory `models`."""
        self.notes = model.contents.notes
        if not self._enabled:
            return
        from profiler.engines.check import check_engine

        try:
            self._description = description = check_engine(models, name)
        except BackendMissing as error:
            self.result = f"not checked: {error}"
            return
        self.result = "checked"
        if description.unverified:
            self.result = f"unverified: {description.unverified}\nTo verify it, {ADVICE}."

    def remember(self, definition: EngineDefinition) -> None:
        """Record the result, so that agents need not load the engine to describe it."""
        from synergai.models.descriptions import remember

        if self._description is not None:
            with suppress(EngineUnusable, OSError):
                remember(definition, self._description)


class StagedChecks:
    """A check of each of several engines that are added together."""

    def __init__(self) -> None:
        self._checks: dict[str, StagedCheck] = {}

    def __call__(self, models: Path, name: str, model: ModelDescription) -> None:
        """Check the engine `name` in the directory `models`."""
        self._checks[name] = StagedCheck(enabled=True)
        self._checks[name](models, name, model)

    def remember(self, definition: EngineDefinition) -> str:
        """Record the result for an engine, and return it as text."""
        check = self._checks[definition.name]
        check.remember(definition)
        return check.result
