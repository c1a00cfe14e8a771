"""Ownership of files that a command run by root makes for a service of another user."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def own_like(directory: Path, file: Path | int) -> None:
    """Give a file, a path or descriptor, to the owner of a directory if this process runs as root.

    A link is not followed: the owner could have made it.
    """
    if os.geteuid():
        return
    owner = directory.stat()
    # Root may lack the permission in a container, where the service runs as root, too.
    with suppress(PermissionError):
        os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=isinstance(file, int))
