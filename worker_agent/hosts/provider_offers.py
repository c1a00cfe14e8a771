"""Execution providers that can be used on this machine, found out in child processes."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec.structs import replace

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.text import printable
from worker_agent.providers import (
    CPU,
    EMULATED,
    ONNXRUNTIME,
    RUNTIMES,
    Offers,
    ProviderChoice,
    Refusal,
    kind_with_runtime_name,
    without_cpu,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

_TIMEOUT_S: Final = 120.0
"""The first start of a driver can take a minute on a board."""
_QUOTED: Final = 200
_CHECK: Final = ("-m", "worker_agent.host.provider_check")
_ERROR: Final = re.compile(r"\[E:onnxruntime.*?\] (?P<text>.*)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_REASON: Final = re.compile(r".*(\[ERROR\]|FAIL :|failed:|(?=\bCUDA failure)) *| ; GPU=.*")
"""Text around the reason in a message of ONNX Runtime."""

_log = logging.getLogger(__name__)


class Runtimes:
    """The inference runtimes of this Python environment."""

    def has(self, backend: str) -> bool:
        return any(find_spec(module) is not None for module in RUNTIMES.get(backend, ()))

    def ships_providers(self) -> bool:
        """Return whether ONNX Runtime comes with libraries of other providers.

        Those that are built into it, such as XNNPACK, have to be named.
        """
        spec = find_spec("onnxruntime")
        folders = spec.submodule_search_locations if spec is not None else None
        return any(
            path.name.rpartition("providers_")[2].partition(".")[0] != "shared"
            for folder in folders or ()
            for path in Path(folder, "capi").glob("*onnxruntime_providers_*")
        )

    async def available(self) -> list[str]:
        """Return the names of the providers that ONNX Runtime was built with."""
        output, fault = await _run()
        if fault:
            raise Unavailable(f"the execution providers of onnxruntime are not known: {fault}")
        return _decode(output, list[str])

    async def fault(self, choice: ProviderChoice, backend: str) -> str:
        """Return why a provider cannot be used with a backend; empty if it can."""
        if backend == EMULATED:
            return ""
        output, fault = await _run("--check", choice.encode(), "--backend", backend)
        try:
            return fault or _decode(output, str)
        except Unavailable as error:
            return str(error)


async def find_offers(
    wanted: Sequence[ProviderChoice],
    runtimes: Runtimes,
    default_cache: Path | None = None,
) -> Offers:
    """Find out which execution providers can be used: of those wanted, or else of all.

    Providers that cannot do without a cache keep one in `default_cache`.
    """
    has_onnxruntime = runtimes.has(ONNXRUNTIME)
    cpu = not wanted or any(each.kind == CPU for each in wanted)
    if wanted:
        choices = without_cpu(wanted, default_cache)
        needs_list = has_onnxruntime and any(each.details.runtime_name for each in choices)
        names = await runtimes.available() if needs_list else []
        for each in choices:
            _check_installed(each, names, runtimes)
    else:
        # Not imported to find out that there is only the CPU, which takes half a second.
        names = await _available(runtimes) if runtimes.ships_providers() else []
        kinds = filter(None, map(kind_with_runtime_name, names))
        found = (
            ProviderChoice(name=kind.name, kind=kind.name, device=kind.device) for kind in kinds
        )
        choices = without_cpu(found, default_cache)
    faults = await asyncio.gather(*(_fault(each, names, runtimes) for each in choices))
    checked = list(zip(choices, faults, strict=True))
    return Offers(
        cpu,
        tuple(choice for choice, fault in checked if not fault),
        tuple(Refusal(choice, fault) for choice, fault in checked if fault),
    )


async def _available(runtimes: Runtimes) -> list[str]:
    """Return the providers of ONNX Runtime; none if it does not say, so that the CPU is left."""
    try:
        return await runtimes.available()
    except Unavailable as error:
        _log.warning("%s; only the CPU is offered", error)
        return []


def _backends(choice: ProviderChoice, names: Iterable[str], runtimes: Runtimes) -> list[str]:
    kind = choice.details
    return [
        backend
        for backend in sorted(kind.backends)
        if (backend == EMULATED or runtimes.has(backend))
        and (backend != ONNXRUNTIME or kind.runtime_name in names)
    ]


def _check_installed(choice: ProviderChoice, names: Sequence[str], runtimes: Runtimes) -> None:
    """Check that an installed runtime was built with a provider."""
    if _backends(choice, names, runtimes):
        return
    kinds = filter(None, map(kind_with_runtime_name, names))
    here = ", ".join((CPU, *(kind.name for kind in kinds)))
    backends = " or ".join(sorted(choice.details.backends))
    raise InvalidInput(
        f"execution provider {choice.name} is not installed here: it needs {backends} with "
        f"{choice.kind}; available: {here}"
    )


async def _fault(choice: ProviderChoice, names: Sequence[str], runtimes: Runtimes) -> str:
    """Return why no installed backend can use a provider; empty if one can."""
    # What a check compiles is not worth keeping.
    trial = replace(choice, cache=None)
    faults = []
    for backend in _backends(choice, names, runtimes):
        fault = await runtimes.fault(trial, backend)
        if not fault:
            return ""
        faults.append(fault)
    return "; ".join(faults)


def _decode(output: str, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(output, type=wanted)
    except msgspec.DecodeError:
        raise Unavailable(f"the check has printed {printable(output[:_QUOTED])!r}") from None


async def _run(*arguments: str) -> tuple[str, str]:
    """Run the check; return its result and why it failed or what the runtime logged of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *_CHECK,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, log = await process.communicate()
    except TimeoutError:
        return "", f"no result within {_TIMEOUT_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = log.decode(errors="replace")
    if process.returncode:
        last = printable((text.strip() or "no message").splitlines()[-1])
        if process.returncode < 0:
            return "", f"the runtime died by signal {-process.returncode}: {last}"
        return "", last
    result = (output.decode(errors="replace").strip().splitlines() or [""])[-1]
    logged = logged_reason(text)
    if logged and result not in ('""', "") and result.startswith('"'):
        fault = _decode(result, str)
        return "", fault if logged in fault else f"{fault.rstrip('.')}: {logged}"
    return result, ""


def logged_reason(log: str) -> str:
    """Return the last error that ONNX Runtime has logged, without source positions."""
    found = _ERROR.findall(_COLOUR.sub("", log))
    return printable(_REASON.sub("", found[-1]).strip()[:500]) if found else ""
