"""What earlier downloads turned out to be: trust on first use.

For most published files nobody has published a digest. The first copy that turns out to be a
model is believed, and its digest is written down beside the engines; whatever comes from the same
address later has to be the same.
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
    """The digests of what was fetched into a model directory, by address.

    Raises:
        InvalidInput: on construction, if the file is there but cannot be read.
    """

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
                f"{self.path} is damaged: mend it, or delete it to believe the next downloads"
            ) from error

    def sha256(self, url: str) -> str:
        """The digest of what first came from `url`; empty if nothing did."""
        return self._digests.get(url, "")

    def record(self, url: str, sha256: str) -> None:
        """Believe what came from `url` from now on.

        Raises:
            OSError: the file cannot be written.
        """
        self._digests[url] = sha256
        write_atomic(self.path, json.dumps(self._digests, indent=2, sort_keys=True) + "\n")
