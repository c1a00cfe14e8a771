"""Registry of named implementations, extensible by entry points."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from synergai.errors import InvalidInput
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of `T`, each imported on first use from its ``module:attribute``."""

    def __init__(self, group: str, builtin: Mapping[str, str]) -> None:
        self._group = group
        self._builtin = dict(builtin)

    def add(self, builtin: Mapping[str, str]) -> None:
        """Add implementations of another part of this distribution."""
        self._builtin.update(builtin)

    def names(self) -> list[str]:
        plugins = (point.name for point in _entry_points(self._group))
        return sorted({*self._builtin, *plugins})

    def get(self, name: str) -> Callable[..., T]:
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return cast("Callable[..., T]", getattr(import_module(module), attribute))
        for point in _entry_points(self._group).select(name=name):
            return cast("Callable[..., T]", self._load(point))
        raise self._unknown(name)

    def check(self, name: str) -> str:
        """Return `name`, without importing what is registered under it."""
        if name in self._builtin or _entry_points(self._group).select(name=name):
            return name
        raise self._unknown(name)

    def _unknown(self, name: str) -> InvalidInput:
        return InvalidInput(
            f"{name!r} is not in {self._group}; available: {', '.join(self.names())}"
        )

    def _load(self, point: EntryPoint) -> Any:
        """Import a plug-in, whose code may raise any error."""
        try:
            return point.load()
        except Exception as error:
            reason = printable(str(error)) or type(error).__name__
            package = f" from {point.dist.name}" if point.dist is not None else ""
            raise InvalidInput(
                f"the plug-in {point.name!r} of {self._group} ({point.value}{package}) cannot be "
                f"imported: {reason}; repair or uninstall it"
            ) from error

    def create(self, name: str, options: Mapping[str, str]) -> T:
        """Create an instance of `name` with the operator's `options`."""
        factory = self.get(name)
        parameters = signature(factory).parameters
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
        unknown = sorted(options.keys() - parameters.keys())
        if unknown and not takes_any:
            known = f"available: {', '.join(parameters)}" if parameters else "it takes none"
            raise InvalidInput(f"{name!r} has no option {unknown[0]!r}; {known}")
        try:
            return factory(**options)
        except InvalidInput:
            raise
        except ValueError as error:  # such as text for a number
            raise InvalidInput(f"an option of {name!r} is invalid: {error}") from error


def _entry_points(group: str) -> EntryPoints:
    # Deferred: it takes 3.5 MB, and most processes use built-in implementations only.
    from importlib.metadata import entry_points

    return entry_points(group=group)
