"""Salvage of the readable entries of a damaged dictionary."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import apsw

from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.profiles.records import KEY, from_record, read_rows
from synergai.runtime.database import connect

if TYPE_CHECKING:
    from pathlib import Path

_READ: Final = "SELECT * FROM profile ORDER BY "


def salvage(path: Path) -> ConfigurationDictionary:
    """Return the entries of a damaged database that can be read.

    The entries are read from both ends up to a damaged page. Pages with a wrong checksum and
    invalid entries are left out.
    """
    found = ConfigurationDictionary()
    for order in ("ASC", "DESC"):
        # Neither the first nor any later row may be readable.
        with suppress(apsw.Error, UnicodeDecodeError), closing(connect(path)) as connection:
            read = _READ + ", ".join(f"{name} {order}" for name in KEY)
            for record in read_rows(connection.execute(read)):
                with suppress(InvalidInput):
                    found.put(from_record(record))
    if not len(found):
        raise InvalidInput(
            f"nothing of {path} can be read; move it away, and profile again or import a copy"
        )
    return found
