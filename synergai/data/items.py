"""Inputs of jobs as they are read, their names, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import SynergaiError
from synergai.runtime.text import encodable

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_REASON: Final = 500
"""Characters of the reason why an input cannot be used."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input of a job.

    Attributes:
        name: appears with the result, such as the name of a file.
        value: an encoded file as ``bytes``; an array, or a mapping of arrays by input name; or,
            from the readers of this package, an `Unusable`.
    """

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Unusable:
    """Placeholder for an input that cannot be read or does not suit the engine."""

    reason: str


def unusable(error: BaseException) -> Unusable:
    """Return what stands in for an input whose reading failed with `error`."""
    if isinstance(error, FileNotFoundError):
        return Unusable("there is no such file")
    if isinstance(error, OSError) and error.strerror:
        return Unusable(error.strerror.lower())
    text = " ".join(str(error).split()) or type(error).__name__
    return Unusable(text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…")


_MAX_CHARACTERS: Final = 1024


def clean_name(name: str) -> str:
    """Return a name as text that UTF-8 can encode, of bounded length; of a long one, its end."""
    name = encodable(name)
    return name if len(name) <= _MAX_CHARACTERS else f"…{name[1 - _MAX_CHARACTERS :]}"


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of one input of a job; ``result["name"]`` is the output of that name.

    Attributes:
        index: position of the input among the job's inputs, from 0.
        name: the input's name, such as the name of its file.
        outputs: arrays by output name, with the engine's dtypes and shapes; empty if it failed.
        error: why the input failed; empty if it did not.
    """

    index: int
    name: str
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    error: str = ""

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self.error:
            raise SynergaiError(f"input {self.index} ({self.name}) failed: {self.error}")
        return self.outputs[name]
