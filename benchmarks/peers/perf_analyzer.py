"""Triton's own load generator, in C++: `perf_analyzer` with unary calls.

Its program needs a newer C library than some systems have. There, one of Debian is unpacked next to
it with mmdebstrap, and starts it.
"""

from __future__ import annotations

import asyncio
import csv
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import UNARY_1, UNARY_16, CallPattern
from benchmarks.client import Figure
from benchmarks.interleaving import Probe, measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.workloads import identity
from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REQUIREMENTS: Final = Path(__file__).with_name("requirements-perf_analyzer.txt")
_GLIBC: Final = (2, 38)
_DEBIAN: Final = "trixie"
_PACKAGES: Final = "libc6,libstdc++6,libssl3t64,zlib1g"
_LIBRARIES: Final = Path("usr", "lib", f"{platform.machine()}-linux-gnu")
_LOADER: Final = f"ld-linux-{platform.machine().replace('_', '-')}.so.2"
_WINDOW_S: Final = 1.0
"""Shorter windows may be without an answer."""


def install(cache: Path) -> list[str]:
    """Install it below `cache` unless it is there; return the command that runs it.

    Raises:
        Unavailable: it cannot be installed; the message has the reason.
    """
    folder = cache.resolve() / "perf_analyzer"
    program = folder / "perf_analyzer" / "bin" / "perf_analyzer"
    if not program.exists():
        wheels = ["--no-deps", "--only-binary=:all:", "--platform", "manylinux_2_38_x86_64"]
        wanted = ["--quiet", "--target", str(folder), "--requirement", str(REQUIREMENTS)]
        _run([sys.executable, "-m", "pip", "install", *wheels, *wanted])
    program.chmod(0o755)
    version = tuple(map(int, platform.libc_ver()[1].split(".")))
    if version >= _GLIBC:
        return [str(program)]
    root = folder / _DEBIAN
    if not (root / _LIBRARIES / _LOADER).exists():
        options = ["--quiet", "--variant=extract", f"--include={_PACKAGES}"]
        _run(["mmdebstrap", *options, _DEBIAN, str(root)])
    libraries = root / _LIBRARIES
    return [str(libraries / _LOADER), "--library-path", str(libraries), str(program)]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise Unavailable(f"perf_analyzer needs {command[0]} on this system") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or ["no output"]
        raise Unavailable(f"cannot install perf_analyzer: {lines[-1]}") from None


async def measure(
    command: Sequence[str], addresses: Mapping[str, str], scratch: Path, rounds: int
) -> Section:
    """Let it call the identity model of each server, by row, the peer first.

    Raises:
        Unavailable: a measurement failed.
    """
    patterns = (UNARY_1, UNARY_16)
    report = scratch / "perf_analyzer.csv"
    probes = [
        Probe(row=row, column=str(each), measure=partial(_measure, command, address, each, report))
        for row, address in addresses.items()
        for each in patterns
    ]
    measured = await measure_interleaved(probes, _WINDOW_S, rounds)
    peer, *ours = addresses
    return Section(
        title=f"{peer}: perf_analyzer",
        note="Identity, unary, by Triton's load generator in C++.",
        rows=list(addresses),
        columns=[str(each) for each in patterns],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"throughput of {row} relative to {peer}: {pattern}",
                value=measured.ratio("per_second", (row, str(pattern)), (peer, str(pattern))),
                at_least=0.9 if pattern is UNARY_16 else None,
            )
            for row in ours
            for pattern in patterns
        ],
    )


async def _measure(
    command: Sequence[str], address: str, pattern: CallPattern, report: Path, seconds: float
) -> Figure:
    process = await asyncio.create_subprocess_exec(
        *command,
        *("-m", identity().engine, "-u", address, "-i", "grpc", "--shape", "x:1"),
        *("--concurrency-range", str(pattern.in_flight), "-f", str(report)),
        *("--measurement-interval", str(round(1e3 * max(seconds, _WINDOW_S)))),
        # It measures this number of windows, however much they differ, and reports their mean.
        *("--max-trials", "3", "--stability-percentage", "999"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise Unavailable(f"perf_analyzer: {output.decode().strip().splitlines()[-1]}")
    with report.open(encoding="ascii") as lines:
        [found] = csv.DictReader(lines)
    return Figure(float(found["p50 latency"]) / 1e3, float(found["Inferences/Second"]))
