"""Sources of a job's inputs: files, arrays, and iterables of anything that is an input."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from synergai.client.streaming import advance_in_thread
from synergai.client.upload_messages import MessageBuilder
from synergai.data.columns import count_rows, iterate_rows
from synergai.data.inventory import InputInventory
from synergai.data.items import NamedInput
from synergai.errors import Conflict, InvalidInput
from synergai.wire.job_inputs import chain_digest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from synergai.client.upload_messages import InputEncoder, UploadMessage
    from synergai.domain import Engine
    from synergai.v1.jobs_pb2 import UploadReceipt

    InputSource: TypeAlias = "InputInventory | ArraySource | IterableSource"
    """Inputs in a stable order; their number is None if it is unknown."""

JobInputs: TypeAlias = InputInventory | str | Path | Mapping[str, Any] | Iterable[Any]
"""See `synergai.Client.submit`."""


async def open_source(inputs: JobInputs, engine: Engine, limit: int) -> InputSource:
    """Return the source of a job's inputs, of `limit` bytes each; files are listed in a thread."""
    match inputs:
        case InputInventory():
            return inputs
        case str() | Path():
            return await asyncio.to_thread(_take_inventory, [str(inputs)], engine, limit)
        case list() | tuple() if inputs and all(isinstance(each, str | Path) for each in inputs):
            paths = [str(each) for each in inputs]
            return await asyncio.to_thread(_take_inventory, paths, engine, limit)
        case np.ndarray():
            if len(engine.inputs) != 1:
                names = ", ".join(spec.name for spec in engine.inputs)
                raise InvalidInput(f"pass a mapping of arrays by the engine's inputs: {names}")
            return ArraySource({engine.inputs[0].name: inputs}, engine)
        case Mapping():
            return ArraySource(inputs, engine)
        case Iterable() if not isinstance(inputs, bytes):
            return IterableSource(inputs)
    raise InvalidInput(
        "the inputs must be paths, arrays, a mapping of arrays, or an iterable of inputs, not "
        f"{type(inputs).__name__}"
    )


def _take_inventory(patterns: Sequence[str], engine: Engine, limit: int) -> InputInventory:
    inventory = InputInventory(patterns, engine, limit=limit)
    try:
        for _ in inventory.scan():
            pass
    except BaseException:
        inventory.close()
        raise
    return inventory


class OtherInputs(Conflict):
    """The upload has other inputs than the caller's."""


class ArraySource:
    """Rows of arrays, one array for each input of the engine."""

    def __init__(self, arrays: Mapping[str, Any], engine: Engine) -> None:
        self._arrays = {name: np.asarray(array) for name, array in arrays.items()}
        names = [spec.name for spec in engine.inputs]
        if set(self._arrays) != set(names):
            raise InvalidInput(
                f"there are arrays {', '.join(self._arrays) or '(none)'}; engine {engine.name!r} "
                f"needs {', '.join(names)}"
            )
        rows = count_rows({name: array.shape for name, array in self._arrays.items()}, engine)
        if rows is None:
            self._arrays = {name: array[np.newaxis] for name, array in self._arrays.items()}
        self.inputs = 1 if rows is None else rows

    def read(self, start: int = 0) -> Iterator[NamedInput]:
        """Yield the rows from `start` on, named by their numbers."""
        for number, row in enumerate(iterate_rows(self._arrays, start), start):
            yield NamedInput(str(number), row)


class IterableSource:
    """Inputs of an iterable, which can be read once."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.inputs = None
        self._items = items

    def read(self, start: int = 0) -> Iterator[NamedInput]:
        """Yield the inputs from `start` on, named by their positions unless they have names."""
        for number, item in islice(enumerate(self._items), start, None):
            yield item if isinstance(item, NamedInput) else NamedInput(str(number), item)


async def read_messages(
    source: InputSource, encoder: InputEncoder, stored: UploadReceipt, *, compare: bool
) -> AsyncGenerator[UploadMessage, None]:
    """Yield the messages of a source's inputs that are not stored yet.

    To `compare`, the others are read as well; `OtherInputs` is raised if something else is stored.
    Sources are advanced in a thread, as they may read files or wait.
    """
    builder = MessageBuilder(encoder, stored.stored)
    items = source.read(0 if compare else stored.stored)

    def build() -> Iterator[UploadMessage]:
        if compare:
            _skip_same(items, encoder, stored)
        for item in items:
            if message := builder.add(item):
                yield message
        while message := builder.take():
            yield message

    async with aclosing(advance_in_thread(build())) as messages:
        async for message in messages:
            yield message


def _skip_same(items: Iterator[NamedInput], encoder: InputEncoder, stored: UploadReceipt) -> None:
    digest = 0
    for item in islice(items, stored.stored):
        digest = chain_digest(digest, encoder.encode_named(item)[0])
    if stored.stored and (not stored.HasField("digest") or digest != stored.digest):
        raise OtherInputs("other inputs are stored")
