"""Programs of systemd that record their calls, and SynergAI's programs below a root."""

from pathlib import Path

import pytest

from synergai.runtime import installation

PROGRAMS = "/opt/synergai/bin"


def fake_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace systemd's programs; return the file that records their calls."""
    calls = folder / "calls"
    programs = folder / "programs"
    programs.mkdir()
    for name in ("systemctl", "systemd-sysusers"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setattr(installation, "_BOOTED", folder)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return calls


def put_programs(root: Path, folder: str = PROGRAMS) -> Path:
    """Create SynergAI's programs below `root`, and return `root`."""
    programs = root / folder.lstrip("/")
    programs.mkdir(parents=True)
    for name in ("synergai", "synergai-power"):
        (programs / name).touch(0o755)
    return root
