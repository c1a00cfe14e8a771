"""Providers and their options as ONNX Runtime takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker_agent.providers.kinds import KINDS

if TYPE_CHECKING:
    from worker_agent.providers.choice import ProviderChoice


def session_providers(choice: ProviderChoice, threads: int) -> list[tuple[str, dict[str, str]]]:
    """Return the ``providers`` of a session, in order of preference; the last is the CPU."""
    kind = choice.details
    options = kind.default_options | choice.options
    if kind.device_option:
        options[kind.device_option] = choice.device
    if kind.threads_option and choice.uses_threads:
        options[kind.threads_option] = str(threads)
    if choice.cache is not None:
        options |= {name: value.format(choice.cache) for name, value in kind.cache_options.items()}
    found = [(kind.runtime_name, options)]
    for name in kind.fallbacks:
        fallback = KINDS[name]
        device = {fallback.device_option: choice.device}
        found.append((fallback.runtime_name, fallback.default_options | device))
    return [*found, ("CPUExecutionProvider", {})]
