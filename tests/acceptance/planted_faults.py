"""Faults planted in a gateway, which an acceptance test must find.

A fault is Python code that the gateway's interpreter runs at its start, from a ``sitecustomize``
module on its path. It replaces a function of the gateway; nothing of it is in the product.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
PLANTS: Final = {
    # The exception of a parser reaches gRPC, which sends UNKNOWN.
    "unknown": """
from synergai.protocol import rpc
rpc.safe_deserializer = lambda read, cls: read
""",
    # The process ends after a hundred messages that cannot be parsed.
    "death": """
import os
from synergai.protocol import rpc
error, calls = rpc.Malformed.error, 0
def dying(self):
    global calls
    calls += 1
    if calls > 100:
        os._exit(3)
    return error(self)
rpc.Malformed.error = dying
""",
}
"""Source of the faults by name."""


def plant(directory: Path, names: Sequence[str]) -> list[str]:
    """Write the faults to `directory`; return the prefix of the command that shall have them."""
    if not names:
        return []
    folder = directory / "planted"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text("".join(PLANTS[name] for name in names))
    return ["env", f"PYTHONPATH={folder}:{_ROOT}"]
