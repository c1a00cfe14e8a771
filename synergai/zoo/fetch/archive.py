"""One file out of an archive that somebody else packed."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from typing import TYPE_CHECKING, Final, Self

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import MAX_MODEL_BYTES

if TYPE_CHECKING:
    from pathlib import Path

MAX_UNPACKED_BYTES: Final = 2 * MAX_MODEL_BYTES
"""How far into an archive its members are looked for: a small one can unpack to terabytes."""
_MAX_EXTENSION_BYTES: Final = 1 << 20
"""Of a header that is longer than a block, which is read into memory as a whole."""
_EXTENSIONS: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def extract_member(archive: Path, member: str, target: Path) -> None:
    """Write one member of a gzipped tar archive to `target`. No other is unpacked to the disk.

    Args:
        archive: the archive.
        member: its name there, with or without a ``./`` before it.
        target: of the copy; what the archive says of places, owners and links does not matter.

    Raises:
        InvalidInput: the archive is damaged or too large, or has no such regular file.
        OSError: the copy cannot be written.
    """
    damage = ""
    try:
        with tarfile.open(archive, "r|gz", tarinfo=_BoundedTarInfo) as tar:
            if _copy_from(tar, archive.name, member, target):
                return
    except InvalidInput:
        raise
    except (tarfile.TarError, EOFError, zlib.error) as error:
        damage = f" ({error})"
    except ValueError:  # of a header's numbers that are none
        damage = " (bad header)"
    raise InvalidInput(f"{archive.name} is damaged, or has no {member}{damage}")


def _copy_from(tar: tarfile.TarFile, name: str, member: str, target: Path) -> bool:
    """Write the member to `target`, if there is one; `name` is the archive's."""
    for entry in tar:
        if entry.offset_data + entry.size > MAX_UNPACKED_BYTES:
            raise InvalidInput(f"{name} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        if entry.name.removeprefix("./") != member:
            continue
        source = tar.extractfile(entry) if entry.isreg() else None
        if source is None:
            raise InvalidInput(f"{member} in {name} is no regular file")
        with source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return True
    return False


class _BoundedTarInfo(tarfile.TarInfo):
    """A member's header, which cannot make its reader take any amount of memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in a block."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and header.size > _MAX_EXTENSION_BYTES:
            raise InvalidInput(f"the archive has a header of {header.size:,} bytes")
        return header
