"""The model files behind the thesis's engines, from ``published.toml``."""

from __future__ import annotations

import hashlib
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergai.domain import EngineName  # noqa: TC001 - msgspec reads it
from synergai.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.installation import Value


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A published model file.

    Attributes:
        url: URL of the file, or of the archive that contains it.
        md5: MD5 of the file, hexadecimal; empty if none was published.
        accuracy: Published top-1 accuracy on ImageNet, 0 to 1; None for detection.
        mean_average_precision: Published value on COCO, 0 to 1; None for classification.
        inputs: Input tensors of a frozen graph; empty for formats that declare them.
        outputs: Output tensors of a frozen graph; empty for formats that declare them.
    """

    name: EngineName
    url: str
    md5: str = ""
    title: str
    accuracy: float | None = None
    mean_average_precision: float | None = None
    preprocess: str
    postprocess: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def keys(self) -> dict[str, Value]:
        """What the definition of the engine says."""
        return {
            "title": self.title,
            "accuracy": self.accuracy,
            "source": self.url,
            "preprocess": self.preprocess,
            "postprocess": self.postprocess,
        }

    def check(self, file: Path) -> None:
        """Check that a file is the published one, as far as its digest was published.

        Raises:
            InvalidInput: It is another file.
        """
        if not self.md5 or not file.is_file():
            return
        with file.open("rb") as content:
            # MD5 protects against corruption, not against an attacker.
            found = hashlib.file_digest(content, _md5).hexdigest()
        if found != self.md5:
            raise InvalidInput(
                f"{file} has the MD5 {found}, but {self.md5} was published for {self.name!r}: "
                f"download it again from {self.url}"
            )


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


PUBLISHED: Final = tuple(
    msgspec.convert(
        tomllib.loads(files("profiler.zoo").joinpath("published.toml").read_text("utf-8"))["files"],
        list[Published],
    )
)


def find_published(name: str) -> Published:
    """Return the published file for the engine `name`."""
    for file in PUBLISHED:
        if file.name == name:
            return file
    names = ", ".join(file.name for file in PUBLISHED)
    raise NotFound(f"there is no recipe {name!r}, only: {names}")
