"""Extraction of weights from untrusted archives."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from profiler.zoo.fetch import archive
from synergai.errors import InvalidInput
from tests.integration.fetch.colours import fetch_colours, file_names, publish_colours
from tests.integration.fetch.web_server import Site


def test_only_the_named_member_is_extracted(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch, archived=True)
    site.content = packed({"../../evil.onnx": b"evil", "./weights.onnx": model, "more": b""})

    fetch_colours(models, site)

    assert file_names(models / "colours") == ["engine.toml", "weights.onnx"]
    assert (models / "colours" / "weights.onnx").read_bytes() == model
    assert not list(models.parent.rglob("evil*"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no archive", "is corrupt"),
        (b"\x1f\x8b\x08\x00" + bytes(50), "is corrupt"),
        (None, "has no weights.onnx"),
    ],
)
def test_archive_that_is_invalid_or_lacks_the_model_is_rejected(
    site: Site,
    models: Path,
    content: bytes | None,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish_colours(monkeypatch, archived=True)
    site.content = packed({"folder/weights.onnx": b"other"}) if content is None else content

    with pytest.raises(InvalidInput, match=complaint):
        fetch_colours(models, site)


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_truncated_archive_is_rejected(
    site: Site, models: Path, model: bytes, cut: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch, archived=True)
    whole = packed({"weights.onnx": model})
    site.content = whole[: int(len(whole) * cut)]

    with pytest.raises(InvalidInput, match="is not the expected model"):
        fetch_colours(models, site)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_member_that_is_not_a_regular_file_is_rejected(
    site: Site, models: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch, archived=True)
    site.content = packed({"weights.onnx": b""}, kind)

    with pytest.raises(InvalidInput, match="is not a regular file"):
        fetch_colours(models, site)


def tar_header(size: int = 0, sparse_map: str = "") -> tarfile.TarInfo:
    """Return the header of an extended header of `size` bytes, or of a sparse file."""
    header = tarfile.TarInfo("weights.onnx")
    header.size = size
    if size:
        header.type = tarfile.XHDTYPE
    if sparse_map:
        header.pax_headers = {"GNU.sparse.map": sparse_map}
    return header


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (tar_header(size=2 << 20), "a header of 2,097,152 bytes"),
        (tar_header(sparse_map="a,b"), "bad header"),
    ],
)
def test_oversized_or_malformed_header_is_rejected(
    site: Site,
    models: Path,
    header: tarfile.TarInfo,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish_colours(monkeypatch, archived=True)
    site.content = gzip.compress(header.tobuf() + bytes(3 << 20))

    with pytest.raises(InvalidInput, match=complaint):
        fetch_colours(models, site)


def test_archive_that_unpacks_to_too_much_is_rejected(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch, archived=True)
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 10_000)
    site.content = packed({"zeros": bytes(20_000), "weights.onnx": model})

    with pytest.raises(InvalidInput, match="unpacks to more than 10,000 bytes"):
        fetch_colours(models, site)


def packed(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a gzipped tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
