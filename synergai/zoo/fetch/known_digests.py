"""Digests of earlier downloads: trust on first use.

Most published files come without a digest. The digest of the first copy that was installed as a
model is recorded next to the engines; later downloads from the same URL must match it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.runtime.atomic_file import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

KNOWN_DIGESTS_FILE: Final = "fetched.json"


class KnownDigests:
    """The digests of the files fetched into a model directory, by URL."""

    def __init__(self, models: Path) -> None:
        self.path: Final = models / KNOWN_DIGESTS_FILE
        try:
            entries = json.loads(self.path.read_text("utf-8"))
            self._digests = {str(url): str(sha256) for url, sha256 in entries.items()}
        except FileNotFoundError:
            self._digests = {}
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be read: {error.strerror}") from error
        except (ValueError, AttributeError) as error:
            raise InvalidInput(
                f"{self.path} is corrupt: repair it, or delete it to trust the next downloads"
            ) from error

    def sha256(self, url: str) -> str:
        """Return the recorded digest for `url`; empty if there is none."""
        return self._digests.get(url, "")

    def record(self, url: str, sha256: str) -> None:
        """Record the digest for `url`."""
        self._digests[url] = sha256
        write_atomic(self.path, json.dumps(self._digests, indent=2, sort_keys=True) + "\n")
