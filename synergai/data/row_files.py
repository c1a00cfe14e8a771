"""Files whose rows are inputs: arrays (.npy), archives of arrays (.npz), Parquet and text.

Every reader is a context manager with the number of inputs in its file, and yields them lazily.
"""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final, Protocol, Self

from synergai.data.array_stream import ArrayStream
from synergai.data.columns import count_rows, match_columns
from synergai.data.locations import open_file, suffix_of
from synergai.data.text_rows import TEXT_SUFFIXES, TextRows
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from synergai.data.columns import Row
    from synergai.domain import Engine

ROW_SUFFIXES: Final = frozenset((".npy", ".npz", ".parquet"))


class RowFile(Protocol):
    """An open file of inputs.

    Attributes:
        single: whether the whole file is one input, and not the first of several rows.
    """

    count: int
    single: bool

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on."""
        ...


def open_rows(path: str, engine: Engine) -> RowFile:
    """Open a file of rows by its suffix."""
    if suffix_of(path) in TEXT_SUFFIXES:
        return TextRows(path, engine)
    if suffix_of(path) == ".parquet":
        from synergai.data.parquet_rows import ParquetRows

        return ParquetRows(open_file(path), engine)
    return ArrayRows(open_file(path), engine, archive=suffix_of(path) == ".npz")


class ArrayRows:
    """Rows of an array, or of the arrays of an archive.

    Args:
        file: the file, which this object closes.
        archive: whether it is a ``.npz`` archive.

    Attributes:
        single: whether the arrays are one input, without a dimension of rows.
    """

    def __init__(self, file: IO[bytes], engine: Engine, *, archive: bool) -> None:
        with ExitStack() as stack:
            stack.enter_context(file)
            files = _members(file, engine, stack) if archive else _only_input(file, engine)
            self._streams = {name: ArrayStream(member) for name, member in files.items()}
            shapes = {name: stream.shape for name, stream in self._streams.items()}
            rows = count_rows(shapes, engine)
            self.single = rows is None
            self.count = 1 if rows is None else rows
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on."""
        if self.single:
            if start == 0:
                yield {name: stream.read_all() for name, stream in self._streams.items()}
            return
        names = list(self._streams)
        columns = [stream.rows(start) for stream in self._streams.values()]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _only_input(file: IO[bytes], engine: Engine) -> dict[str, IO[bytes]]:
    if len(engine.inputs) != 1:
        names = ", ".join(spec.name for spec in engine.inputs)
        raise InvalidInput(
            f"engine {engine.name!r} has {len(engine.inputs)} inputs: put the arrays "
            f"{names} into a .npz file"
        )
    return {engine.inputs[0].name: file}


def _members(file: IO[bytes], engine: Engine, stack: ExitStack) -> dict[str, IO[bytes]]:
    try:
        archive = stack.enter_context(zipfile.ZipFile(file))
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"it is not a .npz file: {error}") from None
    members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    columns = match_columns(members, engine, "arrays")
    return {
        name: stack.enter_context(archive.open(members[column])) for name, column in columns.items()
    }
