"""Published weights fetched from a real web server, which may do anything a web server can."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from engines.cli import app
from engines.fetch import archive, download, fetching
from engines.fetch.fetching import DOWNLOADS, fetch, is_fetched
from engines.fetch.published import PUBLISHED, Published
from engines.model_directory import ModelDirectory
from synergai.domain import EngineName
from synergai.errors import InvalidInput, NotFound, Unavailable
from tests.tiny_images import save_image_engines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "/record/1/files/weights.onnx"


@dataclass
class Site:
    """A web server's behaviour, and what it was asked.

    Attributes:
        content: of every file; none means that there is no file.
        ranges: parts of a file may be asked for.
        breaks: how many bytes each of the next responses sends at most.
        longer: by how much the announced length exceeds the content's; if negative, none is
            announced.
        status: of responses that begin at the beginning.
        headers: of every response.
        redirects: from path to address.
    """

    content: bytes | None
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)
    longer: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"1"'})
    redirects: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, wanted = self.site, self.headers.get("Range")
        site.asked.append((self.path, wanted))
        if self.path in site.redirects:
            self.answer(302, {"Location": site.redirects[self.path]})
            return
        if site.content is None:
            self.answer(404, {})
            return
        begin, size = 0, len(site.content)
        same = self.headers.get("If-Range") == site.headers.get("ETag")
        if site.ranges and wanted is not None and same:
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            if begin >= size:
                self.answer(416, {"Content-Range": f"bytes */{size}"})
                return
        content = site.content[begin:]
        length = {"Content-Length": str(len(content) + site.longer)} if site.longer >= 0 else {}
        if begin:
            length["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        self.answer(206 if begin else site.status, site.headers | length)
        self.wfile.write(content[: site.breaks.pop(0)] if site.breaks else content)

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    models = save_image_engines(tmp_path / "originals")
    return (models / "colours" / "model.onnx").read_bytes()


@pytest.fixture
def site(model: bytes) -> Iterator[Site]:
    site = Site(model)
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield site
        server.shutdown()
        thread.join()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def offered(monkeypatch: pytest.MonkeyPatch, **fields: object) -> Published:
    """Have `colours` published at the site."""
    usual = {
        "name": EngineName("colours"),
        "url": f"https://weights.example{PATH}",
        "file": "weights.onnx",
        "title": "tells colours apart",
        "accuracy": 0.5,
        "preprocess": "mobilenet",
        "postprocess": "classes",
    }
    published = Published(**(usual | fields))  # type: ignore[arg-type]  # any field may be replaced
    monkeypatch.setattr(fetching, "published", lambda _: published)
    return published


def get(models: Path, site: Site, *, replace: bool = False) -> list[tuple[int, int]]:
    """Fetch the engine; returns what was reported."""
    reported: list[tuple[int, int]] = []
    fetch(
        "colours",
        models,
        mirror=site.address,
        replace=replace,
        report=lambda here, total: reported.append((here, total)),
    )
    return reported


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# --- what goes well -------------------------------------------------------------------------


def test_fetched_engine_says_what_it_is_and_where_it_is_from(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = offered(monkeypatch)

    reported = get(models, site)

    engine = ModelDirectory(models).get("colours")
    assert engine.file.read_bytes() == model
    assert engine.verified_digest() == engine.sha256 == hashlib.sha256(model).hexdigest()
    assert (engine.preprocess, engine.postprocess, engine.accuracy) == ("mobilenet", "classes", 0.5)
    assert (engine.source, engine.title) == (published.url, published.title)
    assert reported[-1] == (len(model), len(model))
    assert is_fetched("colours", models)
    assert names(models / DOWNLOADS) == []
    assert site.asked == [(PATH, None)]


def test_file_elsewhere_is_found_by_redirection(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.redirects[PATH] = "/moved/weights.onnx"

    get(models, site)

    assert [path for path, _ in site.asked] == [PATH, "/moved/weights.onnx"]


def test_only_the_named_member_leaves_an_archive(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, archived=True)
    site.content = packed({"../../evil.onnx": b"evil", "./weights.onnx": model, "more": b""})

    get(models, site)

    assert names(models / "colours") == ["engine.toml", "weights.onnx"]
    assert (models / "colours" / "weights.onnx").read_bytes() == model
    assert not list(models.parent.rglob("evil*"))


def test_table_names_each_engine_once_and_only_web_addresses() -> None:
    assert len({file.name for file in PUBLISHED}) == len(PUBLISHED) == 12
    assert all(file.url.startswith("https://") for file in PUBLISHED)
    assert all(file.inputs and file.outputs for file in PUBLISHED if file.file.endswith(".pb"))


# --- interruptions --------------------------------------------------------------------------


def test_connection_that_breaks_is_taken_up_where_it_broke(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.breaks = [500, 200]

    reported = get(models, site)

    assert [wanted for _, wanted in site.asked] == [None, "bytes=500-", "bytes=700-"]
    assert reported[-1] == (len(model), len(model))
    assert ModelDirectory(models).get("colours").file.read_bytes() == model


def test_fetching_again_resumes_what_an_earlier_attempt_has_left(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.breaks = [500, 0]

    with pytest.raises(Unavailable, match=r"broke off after 500 of [\d,]+ bytes; fetch again"):
        get(models, site)
    assert not (models / "colours").exists()
    get(models, site)

    assert site.asked[-1] == (PATH, "bytes=500-")
    assert ModelDirectory(models).get("colours").file.read_bytes() == model


def test_file_that_has_changed_meanwhile_is_begun_anew(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.content, site.breaks = bytes(len(model)), [500, 0]
    with pytest.raises(Unavailable):
        get(models, site)
    site.content, site.headers = model, {"ETag": '"2"'}

    get(models, site)

    assert ModelDirectory(models).get("colours").file.read_bytes() == model


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_parts_whose_version_nobody_knows_are_not_joined(
    site: Site, models: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.headers, site.breaks = headers, [500]

    get(models, site)

    assert [wanted for _, wanted in site.asked] == [None, None]


def test_server_without_ranges_sends_all_of_it_again(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.ranges, site.breaks = False, [500]

    get(models, site)

    assert ModelDirectory(models).get("colours").file.read_bytes() == model


def test_server_that_breaks_off_at_the_same_place_is_given_up(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.ranges, site.breaks = False, [500] * 20

    with pytest.raises(Unavailable, match="broke off after 500"):
        get(models, site)

    assert len(site.asked) == 2


def test_download_that_was_whole_already_is_not_asked_for_again(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(download._Partial, "complete", raising)
        with pytest.raises(KeyboardInterrupt):
            get(models, site)

    get(models, site)

    assert site.asked[-1] == (PATH, f"bytes={len(model)}-")


# --- what is refused ------------------------------------------------------------------------


def test_file_with_another_digest_than_the_published_one_is_deleted(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    md5 = hashlib.md5(model).hexdigest()
    offered(monkeypatch, md5=md5)
    site.content = model[:-1] + b"x"

    with pytest.raises(InvalidInput, match=f"but {md5} was published"):
        get(models, site)
    assert names(models) == [DOWNLOADS]
    assert names(models / DOWNLOADS) == []

    site.content = model
    get(models, site)
    assert is_fetched("colours", models)


def test_first_download_is_believed_and_another_later_is_not(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = offered(monkeypatch)
    get(models, site)
    believed = json.loads((models / "fetched.json").read_text())
    assert believed == {published.url: hashlib.sha256(model).hexdigest()}

    site.content = model + b"\x00"
    with pytest.raises(InvalidInput, match=r"was written down in .*fetched\.json"):
        get(models, site, replace=True)

    assert ModelDirectory(models).get("colours").file.read_bytes() == model


@pytest.mark.parametrize("content", [b"<html>please log in</html>", b"\x08"])
def test_page_that_comes_instead_of_a_model_is_neither_installed_nor_believed(
    site: Site, models: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.content = content

    with pytest.raises(InvalidInput, match="is no such model"):
        get(models, site)

    assert names(models) == [DOWNLOADS]
    assert names(models / DOWNLOADS) == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no archive", "is damaged"),
        (b"\x1f\x8b\x08\x00" + bytes(50), "is damaged"),
        (None, "has no weights.onnx"),
    ],
)
def test_archive_that_is_none_or_lacks_the_model_is_refused(
    site: Site,
    models: Path,
    content: bytes | None,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered(monkeypatch, archived=True)
    site.content = packed({"folder/weights.onnx": b"other"}) if content is None else content

    with pytest.raises(InvalidInput, match=complaint):
        get(models, site)


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_truncated_archive_is_refused(
    site: Site, models: Path, model: bytes, cut: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, archived=True)
    whole = packed({"weights.onnx": model})
    site.content = whole[: int(len(whole) * cut)]

    with pytest.raises(InvalidInput, match="no such model"):
        get(models, site)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_member_that_is_no_regular_file_is_refused(
    site: Site, models: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, archived=True)
    site.content = packed({"weights.onnx": b""}, kind)

    with pytest.raises(InvalidInput, match="is no regular file"):
        get(models, site)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"size": 2 << 20}, "a header of 2,097,152 bytes"),
        ({"pax_headers": {"GNU.sparse.map": "a,b"}}, "bad header"),
    ],
)
def test_header_that_is_too_long_or_has_no_numbers_is_refused(
    site: Site,
    models: Path,
    header: dict[str, Any],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered(monkeypatch, archived=True)
    entry = tarfile.TarInfo("weights.onnx")
    if "size" in header:
        entry.type = tarfile.XHDTYPE
    for name, value in header.items():
        setattr(entry, name, value)
    site.content = gzip.compress(entry.tobuf() + bytes(3 << 20))

    with pytest.raises(InvalidInput, match=complaint):
        get(models, site)


def test_archive_that_unpacks_to_too_much_is_refused(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, archived=True)
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 10_000)
    site.content = packed({"zeros": bytes(20_000), "weights.onnx": model})

    with pytest.raises(InvalidInput, match="unpacks to more than 10,000 bytes"):
        get(models, site)


def test_file_that_is_announced_as_too_large_or_of_no_length_is_refused(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.longer = -1
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        get(models, site)
    site.longer = 0
    monkeypatch.setattr(download, "MAX_MODEL_BYTES", 100)
    with pytest.raises(InvalidInput, match="expected is a file of 1 to 100 bytes"):
        get(models, site)


@pytest.mark.parametrize("length", ["many", "9" * 5000, "-1"])
def test_length_that_is_no_number_is_none(
    site: Site, models: Path, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.longer = -1
    site.headers["Content-Length"] = length
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        get(models, site)
    del site.headers["Content-Length"]
    site.status, site.headers["Content-Range"] = 206, f"bytes 0-1/{length}"
    with pytest.raises(InvalidInput, match="the server offers 0 bytes"):
        get(models, site)


def test_no_more_is_taken_than_was_announced(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.longer = -1
    site.status, site.headers["Content-Range"] = 206, f"bytes 0-9/{len(model)}"
    site.content = model + bytes(10_000)

    assert get(models, site)[-1] == (len(model), len(model))
    assert (models / "colours" / "weights.onnx").read_bytes() == model


@pytest.mark.parametrize("address", ["http://[", "http://a..b", f"http://{'a' * 70}"])
def test_address_that_cannot_be_is_said_so(
    site: Site, models: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.redirects[PATH] = address
    with pytest.raises(Unavailable, match="an address that cannot be"):
        get(models, site)
    site.address = address
    with pytest.raises(Unavailable, match="an address that cannot be"):
        get(models, site)


def test_absent_file_and_absent_server_are_said_so(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.content = None
    with pytest.raises(NotFound, match="answered 404"):
        get(models, site)
    site.address = "http://127.0.0.1:1"
    with pytest.raises(Unavailable, match="cannot be reached: Connection refused"):
        get(models, site)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_only_addresses_of_the_web_are_asked(
    site: Site, models: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    site.redirects[PATH] = address
    with pytest.raises((Unavailable, NotFound)):
        get(models, site)
    site.address = address
    with pytest.raises(InvalidInput, match="is no address of the web"):
        get(models, site)


def test_encryption_is_not_left_by_redirection() -> None:
    secure = urllib.request.Request("https://weights.example/a")

    with pytest.raises(Unavailable, match="which is not encrypted"):
        download._Redirections().redirect_request(
            secure, None, 302, "Found", {}, "http://weights.example/b"
        )


def test_engine_that_is_there_is_replaced_only_when_asked_to(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    (models / "colours").mkdir(parents=True)

    with pytest.raises(InvalidInput, match="replace it with --replace"):
        get(models, site)
    assert site.asked == []
    assert not is_fetched("colours", models)

    get(models, site, replace=True)
    assert is_fetched("colours", models)


def test_damaged_ledger_is_said_so(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch)
    models.mkdir()
    (models / "fetched.json").write_text("[1]")

    with pytest.raises(InvalidInput, match=r"fetched\.json is damaged: mend it"):
        get(models, site)


def test_two_processes_do_not_download_the_same_file(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = offered(monkeypatch)

    with (
        fetching._place(models / DOWNLOADS, published),
        pytest.raises(InvalidInput, match="another process is downloading"),
    ):
        get(models, site)


# --- the command ----------------------------------------------------------------------------


def test_command_fetches_once(site: Site, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch)
    command = ["fetch", "colours", "--models", str(models), "--from", site.address]

    first = CliRunner().invoke(app, command)
    again = CliRunner().invoke(app, command)

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert f"colours: {models / 'colours' / 'weights.onnx'}" in again.stdout
    assert len(site.asked) == 1


def raising(*_: object) -> None:
    raise KeyboardInterrupt


def packed(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    """A gzipped tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
