"""Notifications to systemd, received on a socket in its place."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergai.runtime.service import notify, notify_lifecycle, watchdog_timeout_s


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def heard(manager: socket.socket) -> list[str]:
    words = []
    manager.setblocking(False)
    try:
        while True:
            words.append(manager.recv(256).decode())
    except BlockingIOError:
        return words


def test_gateway_notifies_systemd_of_readiness_watchdog_and_stopping(
    manager: socket.socket, tmp_path: Path
) -> None:
    ports = [f"--{name}=127.0.0.1:0" for name in ("listen", "hub", "http")]
    command = [sys.executable, "-m", "synergai", "gateway", *ports, "--state", str(tmp_path / "s")]
    with subprocess.Popen(command, env={**os.environ, "WATCHDOG_USEC": "60000"}) as process:
        try:
            assert manager.recv(256) == b"READY=1"
            assert [manager.recv(256) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        finally:
            process.send_signal(signal.SIGTERM)
        # The socket holds ten messages, and further ones are lost.
        while (told := manager.recv(256)) == b"WATCHDOG=1":
            pass
        assert told == b"STOPPING=1"
        assert process.wait(20) == 0
    assert heard(manager) == []


async def test_blocked_event_loop_does_not_feed_the_watchdog(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    async with notify_lifecycle():
        await asyncio.sleep(0.005)
        assert "WATCHDOG=1" in heard(manager)
        time.sleep(0.1)  # noqa: ASYNC251  # to hang is the point
        assert heard(manager) == []
        await asyncio.sleep(0.02)
        assert "WATCHDOG=1" in heard(manager)


def test_notify_without_service_manager_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")


def test_unreachable_service_manager_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    notify("READY=1")
    assert "cannot send READY=1 to the service manager" in caplog.text


@pytest.mark.parametrize(
    ("usec", "pid", "wanted"),
    [("2000000", None, 2.0), ("2000000", "1", None), ("", None, None), ("x", None, None)],
)
def test_watchdog_timeout_applies_to_this_process_only(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str | None, wanted: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    else:
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert watchdog_timeout_s() == wanted
