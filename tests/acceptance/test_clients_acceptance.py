"""Clients in other languages on both servers, with and without TLS.

They need Debian's packages ``golang golang-google-grpc-dev``, ``g++ libgrpc++-dev pkg-config`` and
``default-jdk-headless libgrpc-java libperfmark-java libnetty-java libnetty-tcnative-java``, and for
JavaScript ``npm install --global @grpc/grpc-js``.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.gate.server import AUTHORITY, SERVERS, Running, running

_SOURCES: Final = Path(__file__).with_name("clients")
_JARS: Final = "/usr/share/java/*"
_TLS_OF_JAVA: Final = "/usr/lib/x86_64-linux-gnu/jni/libnetty-tcnative.so"
_PERFMARK: Final = "/usr/share/java/perfmark-api.jar"
_GO: Final = "/usr/share/gocode"
_CLIENTS: Final = ("Python", "JavaScript", "Go", "C++", "Java")
_WITHIN_S: Final = 60.0
_READY: Final = ("SIGTERM", "ready")


def build(client: str, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Build a client; return its command, and what it needs in its environment."""
    match client:
        case "Python":
            return [sys.executable, "-m", "tests.acceptance.clients.client"], {}
        case "JavaScript":
            _need("node", "npm")
            root = subprocess.check_output(["npm", "root", "--global"], text=True).strip()
            if not (Path(root) / "@grpc/grpc-js").exists():
                pytest.skip("needs npm install --global @grpc/grpc-js")
            return ["node", str(_SOURCES / "client.js")], {"NODE_PATH": root}
        case "Go":
            _need("go", f"{_GO}/src/google.golang.org/grpc")
            command = ["go", "build", "-o", f"{folder}/client", str(_SOURCES / "client.go")]
            _build(command, GO111MODULE="off", GOPATH=_GO, GOCACHE=f"{folder}/cache")
            return [f"{folder}/client"], {}
        case "C++":
            _need("g++", "pkg-config", "/usr/include/grpcpp")
            flags = subprocess.check_output(
                ["pkg-config", "--cflags", "--libs", "grpc++"], text=True
            )
            source = str(_SOURCES / "client.cc")
            _build(["g++", "-std=c++17", source, "-o", f"{folder}/client", *flags.split()])
            return [f"{folder}/client"], {}
        case _:
            _need("javac", "/usr/share/java/grpc-netty.jar", _TLS_OF_JAVA, _PERFMARK)
            # Netty, whose Debian package has no ALPN of its own, does not find it by Debian's name.
            shutil.copy(_TLS_OF_JAVA, folder / "libnetty_tcnative.so")
            _build(["javac", "-cp", _JARS, "-d", str(folder), str(_SOURCES / "Client.java")])
            options = [f"-Djava.library.path={folder}", "-cp", f"{_JARS}:{folder}"]
            return ["java", *options, "Client"], {}


def _need(*names: str) -> None:
    """Skip without these programs or files."""
    for name in names:
        if not shutil.which(name) and not Path(name).exists():
            pytest.skip(f"needs {name}")


def _build(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def started(
    command: list[str], environment: Mapping[str, str], server: Running, authority: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a client, which ends with the context."""
    address = server.plain if authority == "-" else server.encrypted
    with subprocess.Popen(
        [*command, address, authority],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def matrix() -> Iterator[dict[str, dict[str, str]]]:
    """Results by client and server, and case; the table is printed at the end."""
    results: dict[str, dict[str, str]] = {}
    yield results
    cases = list(dict.fromkeys(case for row in results.values() for case in row))
    print("", " | ".join(["client", *cases]), sep="\n")
    for name, row in results.items():
        print(" | ".join([name, *(row.get(case, "") for case in cases)]))


@pytest.mark.parametrize("client", _CLIENTS)
def test_every_case_passes(client: str, matrix: dict[str, dict[str, str]], tmp_path: Path) -> None:
    command, environment = build(client, tmp_path)
    for name in SERVERS:
        for authority in ("-", str(AUTHORITY)):
            row = matrix[f"{client}, {name}, {'plain' if authority == '-' else 'TLS'}"] = {}
            with (
                running(name, tmp_path / "log") as server,
                started(command, environment, server, authority) as process,
            ):
                assert process.stdout is not None
                for line in process.stdout:
                    case, _, seen = line.rstrip().partition("\t")
                    if (case, seen) == _READY:
                        server.stop()
                    else:
                        row[case] = seen
                assert "SIGTERM" in row, row
                status = server.process.wait(_WITHIN_S)
            if name == "native":
                assert not {case: seen for case, seen in row.items() if not seen.startswith("ok")}
                assert status == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
