"""Installation of peers, each into its own virtual environment."""

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
"""Copy of the requirements, written once an environment is complete."""


def ensure_installed(peer: Peer, cache: Path) -> Path:
    """Create the peer's environment below `cache` unless it exists.

    Returns:
        The path of its Python interpreter.

    Raises:
        Unavailable: the installation failed; the message has the reason.
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
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"cannot install {peer.title}: {lines[-1] if lines else 'no output'}")
