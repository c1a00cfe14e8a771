"""The privileged helper as a process with a socket as its input."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest

from synergai.errors import InvalidInput
from tests.emulated_board.board import EmulatedBoard
from tests.python_3_8 import python_3_8
from worker_agent.power import helper
from worker_agent.power.controller import ModeRefused, Reading, SwitchFailed
from worker_agent.power.nvpmodel import NvpmodelController
from worker_agent.power.selection import DelegatedController

ALLOWED = "# by root\nMODE_15W\nMODE_30W_4CORE  # quick enough\nMODE_10W\n"


def command(board: EmulatedBoard, *arguments: str) -> list[str]:
    module = "worker_agent.power.helper"
    return [sys.executable, "-m", module, "--root", str(board.root), *arguments]


class Answer(TypedDict, total=False):
    mode: str
    seconds: float
    error: str
    message: str


def ask(board: EmulatedBoard, request: bytes) -> Answer:
    done = subprocess.run(command(board), input=request, capture_output=True, check=False)
    answer: Answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    assert (done.returncode == 0) == ("error" not in answer)
    assert b"Traceback" not in done.stderr
    return answer


@pytest.fixture
def board(agx: EmulatedBoard) -> EmulatedBoard:
    agx.set(helper.ALLOWED, ALLOWED)
    return agx


def test_python_of_boards_switches_as_well(board: EmulatedBoard) -> None:
    switched = subprocess.run(
        [python_3_8(), "-S", *command(board, "MODE_15W")[1:]],
        env={**os.environ, "PYTHONPATH": str(Path(helper.__file__).parents[2])},
        capture_output=True,
        check=False,
    )
    assert json.loads(switched.stdout)["mode"] == "MODE_15W", switched.stderr


@pytest.fixture
def address(board: EmulatedBoard, tmp_path: Path) -> Iterator[Path]:
    """Socket that starts one helper per connection, as systemd does."""
    path = tmp_path / "power.sock"
    with socket.create_server(str(path), family=socket.AF_UNIX) as listener:

        def serve() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                with line:
                    end = line.fileno()
                    subprocess.run(command(board), stdin=end, stdout=end, check=False)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_mode_that_is_not_on_the_list_is_refused(board: EmulatedBoard) -> None:
    assert ask(board, b"MAXN\n") == {
        "error": "refused",
        "message": "power mode MAXN is not in /etc/synergai/power-modes",
    }
    assert board.calls() == []


def test_a_mode_that_needs_a_reboot_is_refused_though_it_is_on_the_list(
    board: EmulatedBoard,
) -> None:
    answer = ask(board, b"MODE_10W\n")
    assert answer["error"] == "refused"
    assert "reboot" in answer["message"]


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"\n", b"MODE_15W", b"../../etc\n", b"-m 1\n", b"\xff\xfe\n", b"A" * 300 + b"\n"],
)
def test_a_malformed_request_gets_an_error_and_has_no_effect(
    board: EmulatedBoard, request_bytes: bytes
) -> None:
    assert ask(board, request_bytes)["error"] == "unknown"
    assert board.calls() == []


def test_without_a_list_nothing_is_allowed(agx: EmulatedBoard) -> None:
    assert "no mode is allowed" in ask(agx, b"MODE_15W\n")["message"]


def test_a_list_writable_by_others_is_rejected(board: EmulatedBoard) -> None:
    board.files.path(helper.ALLOWED).chmod(0o666)
    with pytest.raises(InvalidInput, match="writable by root only"):
        helper.allowed_modes(board.files)
    board.files.path(helper.ALLOWED).chmod(0o644)
    assert helper.allowed_modes(board.files) == ("MODE_15W", "MODE_30W_4CORE", "MODE_10W")


def test_the_reply_to_a_failed_switch_has_the_mode_in_force(board: EmulatedBoard) -> None:
    board.inject_fault("fails", once=True)
    assert ask(board, b"MODE_30W_4CORE\n")["mode"] == "MODE_15W"


def test_an_unprivileged_agent_switches_through_the_helper(
    board: EmulatedBoard, address: Path
) -> None:
    power = DelegatedController(NvpmodelController(board.files), address)
    assert power.switch("MODE_30W_4CORE").mode == "MODE_30W_4CORE"
    assert power.read() == Reading("MODE_30W_4CORE")
    with pytest.raises(ModeRefused, match="is not in"):
        power.switch("MAXN")


def test_an_unverified_success_is_a_failure(board: EmulatedBoard, tmp_path: Path) -> None:
    with socket.create_server(str(tmp_path / "s"), family=socket.AF_UNIX) as listener:

        def lie() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(256)
                line.sendall(b'{"mode": "MAXN", "seconds": 1.0}\n')

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(SwitchFailed, match="but it is MODE_15W") as failed:
            DelegatedController(NvpmodelController(board.files), tmp_path / "s").switch("MAXN")
        thread.join()
    assert failed.value.reading == Reading("MODE_15W")


def test_without_a_helper_other_modes_are_unavailable(board: EmulatedBoard, tmp_path: Path) -> None:
    power = DelegatedController(NvpmodelController(board.files), tmp_path / "missing")
    reachable = [mode.name for mode in power.modes() if not mode.refused]
    assert reachable == ["MODE_15W"]
    with pytest.raises(ModeRefused, match=r"synergai-power.socket"):
        power.switch("MAXN")


def test_concurrent_helpers_are_serialised(board: EmulatedBoard) -> None:
    both = [
        subprocess.Popen(command(board, mode), stdout=subprocess.PIPE, env=os.environ)
        for mode in ("MODE_30W_4CORE", "MODE_15W")
    ]
    answers = [json.loads(process.communicate()[0]) for process in both]
    assert all("error" not in answer for answer in answers)
