"""Installing peers, each into a virtual environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.peers.registry import Peer

STAMP = "installed.txt"
"""A copy of the requirements that an environment was made from, written last."""


def installed(peer: Peer, cache: Path) -> Path:
    """Make the peer's environment below `cache` unless it is there already.

    Returns:
        Its Python.

    Raises:
        Unavailable: it cannot be installed, with the reason.
    """
    folder = cache.resolve() / peer.name
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = peer.requirements.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {peer.title} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], peer)
    requirements = str(peer.requirements)
    _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", requirements], peer)
    stamp.write_text(wanted)
    return python


def _run(command: list[str], peer: Peer) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{peer.title} cannot be installed: {said[-1] if said else 'no word'}")
