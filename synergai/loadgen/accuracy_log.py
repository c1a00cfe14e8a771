"""Reads LoadGen's accuracy log: what was answered to each sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

ACCURACY_FILE: Final = "mlperf_log_accuracy.json"


def read_answers(path: Path, count: int) -> dict[int, bytes]:
    """The bytes logged for each sample, by its index.

    Args:
        path: the log file.
        count: how many samples there are.

    Raises:
        InvalidInput: it cannot be read, is no accuracy log, is empty, or has a sample that is none.
    """
    try:
        entries = json.loads(path.read_text("utf-8"))
        answers = {int(entry["qsl_idx"]): bytes.fromhex(entry["data"]) for entry in entries}
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is no accuracy log of LoadGen") from None
    if not answers:
        raise InvalidInput(f"{path} has no answers; LoadGen logs them in accuracy mode only")
    if not all(0 <= index < count for index in answers):
        raise InvalidInput(f"{path} is of other samples: there are {count:,} here")
    return answers
