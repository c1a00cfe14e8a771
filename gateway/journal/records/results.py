"""Results of one job over its client's inputs, stored in the order in which they arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.journal.records.log import DamagedLog, Record
from synergai.v1.jobs_pb2 import JobResult
from synergai.wire.request_codec import field_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.journal.records.log import RecordLog
    from synergai.wire.request_codec import Buffer

_NONE: Final = 0
_ANSWERED: Final = 1
_FAILED: Final = 2
_RESPONSE: Final = JobResult.RESPONSE_FIELD_NUMBER


class InputResult(Struct, frozen=True):
    """Outcome of one input: a serialised ``ModelInferResponse``, or why it failed."""

    index: int
    name: str
    response: Buffer = b""
    error: str = ""


class ResultLog:
    """The results of a job: at most one for each input.

    A record is a serialised ``JobResult``; its tag holds the index, and whether the input failed.
    """

    def __init__(self, log: RecordLog, queries: int) -> None:
        self.log = log
        self._outcomes = bytearray(queries)
        for tag in log.tags():
            index, outcome = tag >> 1, _FAILED if tag & 1 else _ANSWERED
            if index >= queries or self._outcomes[index]:
                raise DamagedLog(f"{log.directory} has two results of input {index}, or too many")
            self._outcomes[index] = outcome

    def __len__(self) -> int:
        """Return the number of durable results."""
        return len(self.log)

    def append(self, results: Sequence[InputResult]) -> None:
        """Write results, except for inputs that already have one."""
        new = {result.index: result for result in results if not self._outcomes[result.index]}
        self.log.append(_records(new.values()))
        for index, result in new.items():
            self._outcomes[index] = _FAILED if result.error else _ANSWERED

    def sync(self) -> None:
        """Make the results durable."""
        self.log.sync()

    def failures(self, first: int, stop: int) -> int:
        """Return the number of the results ``[first, stop)`` that are failures."""
        return self._outcomes.count(_FAILED, first, stop)

    def lacks(self, first: int, stop: int) -> bool:
        """Return whether one of the results ``[first, stop)`` is missing."""
        return self._outcomes.find(_NONE, first, stop) >= 0


def _records(results: Iterable[InputResult]) -> Iterator[Record]:
    for result in results:
        message = JobResult(index=result.index, name=result.name)
        if result.error:
            message.error = result.error
            yield Record(result.index << 1 | 1, (message.SerializeToString(),))
        else:
            prefix = field_prefix(_RESPONSE, len(result.response))
            parts = (message.SerializeToString() + prefix, result.response)
            yield Record(result.index << 1, parts)
