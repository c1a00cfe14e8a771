"""Fetching of published engines: download, verify, install."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from profiler.zoo.fetch.archive import extract_member
from profiler.zoo.fetch.download import download
from profiler.zoo.fetch.published import find_published
from synergai.errors import InvalidInput, SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.models.installation import stage_engine, write_definition
from synergai.runtime.atomic_file import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from profiler.zoo.fetch.download import ProgressCallback
    from profiler.zoo.fetch.published import Published
    from synergai.models.directory import EngineDefinition

DOWNLOADS: Final = ".downloads"
"""Folder in the model directory for complete and partial downloads."""


def is_fetched(name: str, models: Path) -> bool:
    """Return whether the engine was fetched into the model directory and is intact."""
    published = find_published(name)
    if not (models / name).exists():
        return False
    definition = ModelDirectory(models).get(name)
    try:
        definition.verified_digest()
    except SynergaiError:
        return False
    return definition.source == published.url


def fetch(
    name: str,
    models: Path,
    *,
    mirror: str = "",
    replace: bool = False,
    on_progress: ProgressCallback,
) -> EngineDefinition:
    """Download, verify and install the published weights of an engine.

    Args:
        models: The model directory; created if missing.
        mirror: Base URL, such as ``https://example.org/weights``, that replaces the host of the
            published URL; the file is verified all the same.
    """
    published = find_published(name)
    if (models / name).exists() and not replace:
        raise InvalidInput(f"{models} has an engine {name!r} already; replace it with --replace")
    url = mirror.rstrip("/") + urlsplit(published.url).path if mirror else published.url
    try:
        with _locked_download(models / DOWNLOADS, published) as file:
            download(url, file, on_progress)
            sha256 = _verify(published, file, KnownDigests(models))
            _install_model(published, file, models, replace)
            # Record only files that were installed as a model, not, say, an error page.
            KnownDigests(models).record(published.url, sha256)
            file.unlink()
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    return ModelDirectory(models).get(name)


@contextmanager
def _locked_download(folder: Path, published: Published) -> Iterator[Path]:
    """Yield the path to download to, locked for this process."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "-".join(urlsplit(published.url).path.split("/")[1:])
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"another process is downloading {published.url}") from None
        yield file


def _verify(published: Published, file: Path, known: KnownDigests) -> str:
    """Return the file's sha256 after verification; delete the file if it fails."""
    md5, sha256 = _digest(file, "md5"), _digest(file, "sha256")
    known_sha256 = known.sha256(published.url)
    for algorithm, found, expected, origin in (
        ("md5", md5, published.md5, "published"),
        ("sha256", sha256, known_sha256, f"recorded in {known.path} by the first download"),
    ):
        if expected and found != expected:
            file.unlink()
            raise InvalidInput(
                f"the file from {published.url} has the {algorithm} {found}, but {expected} was "
                f"{origin}; it was deleted and nothing was installed"
            )
    return sha256


def _digest(file: Path, algorithm: str) -> str:
    with file.open("rb") as content:
        # MD5 is the published digest; it protects against corruption, not against an attacker.
        return hashlib.file_digest(
            content, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()


def _install_model(published: Published, file: Path, models: Path, replace: bool) -> None:
    """Install the verified file as an engine, if it is a model."""
    from synergai.models.formats.inspect import describe

    with stage_engine(models, published.name, replace=replace) as folder:
        model = folder / published.file
        try:
            if published.archived:
                extract_member(file, published.file, model)
            else:
                shutil.copyfile(file, model)
            description = describe(model)
        except InvalidInput as error:
            file.unlink()  # so that another attempt downloads it again
            raise InvalidInput(
                f"the file from {published.url} is not the expected model: {error}"
            ) from error
        write_definition(
            folder,
            {
                "file": published.file,
                "sha256": description.digest,
                "title": published.title,
                "accuracy": published.accuracy,
                "source": published.url,
                "preprocess": published.preprocess,
                "postprocess": published.postprocess,
                "inputs": published.inputs,
                "outputs": published.outputs,
            },
        )


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
