"""Reader of LoadGen's accuracy log, which holds the response to each sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

ACCURACY_FILE: Final = "mlperf_log_accuracy.json"


def read_accuracy_log(path: Path, count: int) -> dict[int, bytes]:
    """Return the logged bytes by sample index."""
    try:
        entries = json.loads(path.read_text("utf-8"))
        responses = {int(entry["qsl_idx"]): bytes.fromhex(entry["data"]) for entry in entries}
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is not an accuracy log of LoadGen") from None
    if not responses:
        raise InvalidInput(f"{path} has no responses; LoadGen logs them in accuracy mode only")
    if not all(0 <= index < count for index in responses):
        raise InvalidInput(f"{path} is of another sample set: this one has {count:,} samples")
    return responses
