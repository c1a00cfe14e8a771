"""Check of an execution provider: ``python -m worker_agent.host.provider_check``.

It runs in a process of its own, like an engine host: drivers may crash, and the agent's process
imports no runtime. It prints what it found as its last line. The log of the runtime, which has the
reason of many failures, goes to standard error.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from synergai.errors import EngineUnusable, SynergaiError
from worker_agent.backends import BACKENDS, Backend
from worker_agent.providers import ONNXRUNTIME, ProviderChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MODEL: Final = (
    "2nafj0SXZc0eA`lcM<`4A_h%ibWL?^5&>r_O9%uA1P}p20e4D3004kL0000$002Nh004kM005vs006*1007`X0000%"
    "000m{001CC001yS002Ni002-y003Y?003}7004kNS`!KZcoGf@3<v=d2nqrS0SW>L1Y#2k0eKP*3JeGV5(o+c2muNL"
    "2n0d|3IGrd"
)
"""ONNX model ``y = x @ w`` with ``w`` the numbers 1 to 16 in four rows, in base 85."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the names of the providers of ONNX Runtime, or why one cannot be used; see above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=ProviderChoice.decode, help="list the names if absent")
    parser.add_argument("--backend", default=ONNXRUNTIME)
    options = parser.parse_args(arguments)
    found: object = _check(options.check, options.backend) if options.check else _available()
    sys.stdout.write(f"\n{msgspec.json.encode(found).decode()}\n")
    return 0


def _available() -> list[str]:
    import onnxruntime

    names: list[str] = onnxruntime.get_available_providers()
    return names


def _check(choice: ProviderChoice, backend: str) -> str:
    """Return why `choice` cannot be used; empty if it can."""
    try:
        factory = BACKENDS.get(backend)
        if backend == ONNXRUNTIME:
            _compute(factory, choice)
    except ImportError as error:
        return f"{backend} cannot be imported: {error}"
    except SynergaiError as error:
        return str(error)
    return ""


def _compute(factory: Callable[..., Backend], choice: ProviderChoice) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "check.onnx")
        model.write_bytes(base64.b85decode(_MODEL))
        engine = factory(model, 1, provider=choice)
        [result] = engine.run({"x": np.ones((1, 4), np.float32)}, ["y"])
    if not np.allclose(result, [[28, 32, 36, 40]], rtol=0.01):
        raise EngineUnusable(f"{choice} computes a small model wrongly")


if __name__ == "__main__":
    sys.exit(main())
