"""Fashion-MNIST: 70,000 grey images of 28 x 28 pixels, in ten classes of clothes (Zalando, MIT).

The data is the Debian package ``dataset-fashion-mnist``, which has the official split into 60,000
images for training and 10,000 for testing. If it is not installed, it is downloaded by apt, which
verifies it, and unpacked into a temporary folder.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from examples.training.strided_cnn import Images
from synergai.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PACKAGE: Final = "dataset-fashion-mnist"
FOLDER: Final = Path("/usr/share/datasets/fashion-mnist")
_DOWNLOAD_S: Final = 600.0
_MAX_BYTES: Final = 64 << 20
"""Largest file of the data set is 47 MB unpacked."""


def fashion_mnist(folder: Path = FOLDER) -> tuple[Images, Images]:
    """Return the images for training and for testing.

    Args:
        folder: where the package installs the data.

    Raises:
        NotFound: it is not installed and cannot be downloaded.
        InvalidInput: a file is damaged.
    """
    with _available(folder) as found:
        return _read(found, "train"), _read(found, "t10k")


@contextmanager
def _available(folder: Path) -> Iterator[Path]:
    """Yield the folder with the data."""
    if folder.is_dir():
        yield folder
        return
    with tempfile.TemporaryDirectory() as name:
        yield _download(Path(name)) / folder.relative_to("/")


def _download(folder: Path) -> Path:
    """Download and unpack the package; return the root of its files."""
    programs = ("apt-get", "dpkg-deb")
    if all(map(shutil.which, programs)):
        # apt-get writes as a user of its own if that may.
        folder.chmod(0o755)
        commands = (["apt-get", "--quiet", "download", PACKAGE], ["dpkg-deb", "-x"])
        for command in commands:
            files = [] if command[0] == "apt-get" else [*folder.glob("*.deb"), folder]
            try:
                done = subprocess.run(
                    [*command, *files],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_DOWNLOAD_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                break
            if done.returncode:
                break
        else:
            return folder
    raise NotFound(
        f"this engine is trained on the Debian package {PACKAGE}, which is not installed and could "
        f"not be downloaded; install it with 'sudo apt-get install {PACKAGE}', or unpack it to "
        f"{FOLDER}"
    )


def _read(folder: Path, part: str) -> Images:
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise InvalidInput(f"{folder} has images and labels that do not belong together")
    return Images(pixels, labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a gzipped IDX file, the format of the MNIST database.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is damaged.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}; install {PACKAGE} again") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    # Two zero bytes, the type (8 is unsigned bytes), the rank; then the sizes, big-endian.
    rank = content[3] if len(content) > 3 else 0
    sizes: Any = np.frombuffer(content[4 : 4 + 4 * rank], ">u4") if rank else np.zeros(0)
    offset = 4 + 4 * rank
    if content[:3] != b"\0\0\x08" or not rank or len(content) - offset != sizes.prod():
        raise InvalidInput(f"{path} is not an IDX file of bytes")
    return np.frombuffer(content, np.uint8, offset=offset).reshape(sizes.astype(int))
