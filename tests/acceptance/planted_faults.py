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
    # Each message that cannot be parsed is kept.
    "leak": """
from synergai.protocol import rpc
kept = []
error = rpc.Malformed.error
def leaking(self):
    kept.append(bytearray(20_000))
    return error(self)
rpc.Malformed.error = leaking
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
    # Every fiftieth end of an assignment is not written, as if the disk had lied.
    "lost": """
from gateway.journal import operations
record, calls = operations.record_execution, 0
def forgetful(*args, **fields):
    global calls
    calls += 1
    if calls % 50:
        record(*args, **fields)
operations.record_execution = forgetful
""",
    # Idempotency keys are ignored.
    "twice": """
from gateway.journal import operations
operations.find_accepted = lambda *args, **fields: None
accept = operations.accept
operations.accept = lambda connection, record, key: accept(connection, record, "")
""",
    # Ten kilobytes per request.
    "slow-leak": """
from gateway.requests import inference
kept = []
begin = inference.Inference.begin
def leaking(*args, **fields):
    kept.append(bytearray(10_000))
    return begin(*args, **fields)
inference.Inference.begin = leaking
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
