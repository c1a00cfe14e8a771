"""The result of one input of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
