from pathlib import Path

import pytest

from profiler.zoo.fetch import download
from synergai.errors import Unavailable
from synergai.models.directory import ModelDirectory
from tests.integration.fetch.colours import PATH, fetch_colours, publish_colours
from tests.integration.fetch.web_server import Site


def test_lost_connection_is_resumed(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.truncate_at = [500, 200]

    reported = fetch_colours(models, site)

    assert [wanted for _, wanted in site.requests] == [None, "bytes=500-", "bytes=700-"]
    assert reported[-1] == (len(model), len(model))
    assert ModelDirectory(models).get("colours").file.read_bytes() == model


def test_later_fetch_resumes_the_download(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.truncate_at = [500, 0]

    with pytest.raises(
        Unavailable, match=r"the connection was lost after 500 of [\d,]+ bytes; fetch again"
    ):
        fetch_colours(models, site)
    assert not (models / "colours").exists()
    fetch_colours(models, site)

    assert site.requests[-1] == (PATH, "bytes=500-")
    assert ModelDirectory(models).get("colours").file.read_bytes() == model


def test_changed_file_is_downloaded_from_the_start(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.content, site.truncate_at = bytes(len(model)), [500, 0]
    with pytest.raises(Unavailable):
        fetch_colours(models, site)
    site.content, site.headers = model, {"ETag": '"2"'}

    fetch_colours(models, site)

    assert ModelDirectory(models).get("colours").file.read_bytes() == model


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_download_without_a_strong_validator_is_not_resumed(
    site: Site, models: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.headers, site.truncate_at = headers, [500]

    fetch_colours(models, site)

    assert [wanted for _, wanted in site.requests] == [None, None]


def test_download_without_progress_fails(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.supports_ranges, site.truncate_at = False, [500] * 20

    with pytest.raises(Unavailable, match="the connection was lost after 500"):
        fetch_colours(models, site)

    assert len(site.requests) == 2


def test_complete_download_is_not_repeated(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(download._PartialFile, "complete", raising)
        with pytest.raises(KeyboardInterrupt):
            fetch_colours(models, site)

    fetch_colours(models, site)

    assert site.requests[-1] == (PATH, f"bytes={len(model)}-")


def raising(*_: object) -> None:
    raise KeyboardInterrupt
