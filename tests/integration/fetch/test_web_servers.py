"""Downloads from unusual, faulty and hostile web servers."""

import urllib.request
from pathlib import Path

import pytest

from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.zoo.fetch import download
from tests.integration.fetch.colours import PATH, fetch_colours, publish_colours
from tests.integration.fetch.web_server import Site


def test_redirections_are_followed(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.redirects[PATH] = "/moved/weights.onnx"

    fetch_colours(models, site)

    assert [path for path, _ in site.requests] == [PATH, "/moved/weights.onnx"]


def test_file_of_excessive_or_unknown_length_is_rejected(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.extra_length = -1
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        fetch_colours(models, site)
    site.extra_length = 0
    monkeypatch.setattr(download, "MAX_MODEL_BYTES", 100)
    with pytest.raises(InvalidInput, match="expected a file of 1 to 100 bytes"):
        fetch_colours(models, site)


@pytest.mark.parametrize("length", ["many", "9" * 5000, "-1"])
def test_invalid_length_counts_as_unknown(
    site: Site, models: Path, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.extra_length = -1
    site.headers["Content-Length"] = length
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        fetch_colours(models, site)
    del site.headers["Content-Length"]
    site.status, site.headers["Content-Range"] = 206, f"bytes 0-1/{length}"
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        fetch_colours(models, site)


def test_bytes_beyond_the_announced_length_are_ignored(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.extra_length = -1
    site.status, site.headers["Content-Range"] = 206, f"bytes 0-9/{len(model)}"
    site.content = model + bytes(10_000)

    assert fetch_colours(models, site)[-1] == (len(model), len(model))
    assert (models / "colours" / "weights.onnx").read_bytes() == model


@pytest.mark.parametrize("address", ["http://[", "http://a..b", f"http://{'a' * 70}"])
def test_invalid_address_is_reported(
    site: Site, models: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.redirects[PATH] = address
    with pytest.raises(Unavailable, match="an invalid address"):
        fetch_colours(models, site)
    site.address = address
    with pytest.raises(Unavailable, match="an invalid address"):
        fetch_colours(models, site)


def test_missing_file_and_unreachable_server_are_reported(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.content = None
    with pytest.raises(NotFound, match="answered 404"):
        fetch_colours(models, site)
    site.address = "http://127.0.0.1:1"
    with pytest.raises(Unavailable, match="cannot be reached: Connection refused"):
        fetch_colours(models, site)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_only_web_addresses_are_requested(
    site: Site, models: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.redirects[PATH] = address
    with pytest.raises((Unavailable, NotFound)):
        fetch_colours(models, site)
    site.address = address
    with pytest.raises(InvalidInput, match="is not a web address"):
        fetch_colours(models, site)


def test_redirection_to_unencrypted_http_is_refused() -> None:
    secure = urllib.request.Request("https://weights.example/a")

    with pytest.raises(Unavailable, match="which is not encrypted"):
        download._SecureRedirectHandler().redirect_request(
            secure, None, 302, "Found", {}, "http://weights.example/b"
        )
