"""Shards: files of consecutive results, which never change once they have their name.

They are ``.npz`` archives or Parquet files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from synergai.data.shard_description import ShardDescription, describe_outputs
from synergai.errors import InvalidInput
from synergai.runtime.files import naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.data.items import JobResult

Format: TypeAlias = Literal["npz", "parquet"]
FORMATS: Final[tuple[Format, ...]] = ("npz", "parquet")
TEMPORARY_PREFIX: Final = ".synergai-"


class ShardFormat(Protocol):
    """Reader and writer of a file format."""

    def write(
        self, file: IO[bytes], results: Sequence[JobResult], description: ShardDescription
    ) -> None:
        """Write a shard to a new file."""
        ...

    def describe(self, path: Path) -> ShardDescription:
        """Return a shard's description."""
        ...

    def read(self, path: Path) -> Iterator[JobResult]:
        """Yield a shard's results."""
        ...


def format_of(path: Path) -> ShardFormat:
    """Return the format of a shard by its suffix."""
    match path.suffix:
        case ".npz":
            from synergai.data import npz_shards

            return npz_shards.NpzShards()
        case ".parquet":
            from synergai.data import parquet

            return parquet.ParquetShards()
    raise InvalidInput(f"{path}: a shard of results ends in .npz or .parquet")


def write_shard(
    path: Path, results: Sequence[JobResult], *, job_id: str, cursor: int, total: int
) -> None:
    """Write a shard that appears at `path` complete and durable, or not at all.

    Args:
        path: the file; its suffix is the format. It must not exist.
        results: the results, in the order of the cursor; not empty.
        cursor: where its results continue after the last of these.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, "it exists already", str(path))
    kind = format_of(path)
    description = ShardDescription(job_id, cursor, len(results), total, describe_outputs(results))
    with (
        naming(path),
        NamedTemporaryFile(
            dir=path.parent, prefix=f"{TEMPORARY_PREFIX}{path.name}-", delete=False
        ) as file,
    ):
        temporary = Path(file.name)
        try:
            kind.write(file, results, description)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
