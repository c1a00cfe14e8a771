"""Named implementations of a protocol: ours, and those of third parties by entry point."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class Registry(Generic[T]):
    """Names for factories of `T`, imported only when one is asked for.

    Args:
        group: entry point group in which third parties register their own.
        builtin: ``module:attribute`` by name.
    """

    def __init__(self, group: str, builtin: Mapping[str, str]) -> None:
        self._group = group
        self._builtin = dict(builtin)

    def names(self) -> list[str]:
        """All names that can be asked for, sorted."""
        return sorted({*self._builtin, *(point.name for point in entry_points(group=self._group))})

    def get(self, name: str) -> Callable[..., T]:
        """The factory registered under `name`.

        Raises:
            InvalidInput: there is none.
        """
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return cast("Callable[..., T]", getattr(import_module(module), attribute))
        for point in entry_points(group=self._group, name=name):
            loaded: Any = point.load()
            return cast("Callable[..., T]", loaded)
        raise InvalidInput(
            f"{self._group} has nothing called {name!r}; there are: {', '.join(self.names())}"
        )

    def make(self, name: str, options: Mapping[str, str]) -> T:
        """What is registered under `name`, made with an operator's `options`.

        Raises:
            InvalidInput: there is none, it has no such option, or a value is wrong.
        """
        factory = self.get(name)
        parameters = signature(factory).parameters
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
        unknown = sorted(options.keys() - parameters.keys())
        if unknown and not takes_any:
            known = f"there are: {', '.join(parameters)}" if parameters else "there are none"
            raise InvalidInput(f"{name!r} has no option {unknown[0]!r}; {known}")
        return factory(**options)
