"""Downloads from unusual, faulty and hostile web servers."""

import urllib.request
from pathlib import Path

import pytest

from profiler.zoo.fetch import download
from synergai.errors import InvalidInput, NotFound, Unavailable
from tests.integration.fetch.colours import PATH, fetch_colours, publish_colours
from tests.integration.fetch.web_server import Site


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
