"""The fleet page in a browser: live and recorded, in both colour schemes, wide and narrow.

`AXE` names a folder with axe-core's `axe.min.js`, for the rules of accessibility; `SCREENSHOTS` one
to keep pictures in.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from demo.local_fleet import LocalFleet
from profiler.reports.recorded_page import render_recording
from profiler.zoo import recipes as zoo
from tests.staged_runs import ENGINES, write_run

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
BROWSER = shutil.which("chromium") or ""
AXE = Path(os.environ.get("AXE", "")) / "axe.min.js"
pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCHEMES = ("light", "dark")
SIZES = ((1280, 900), (390, 844))
INFER = "/v2/models/onnx_identity/infer"
REQUEST = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield running
        running.close()


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """Open a page that must not write to the console."""
    context = browser.new_context(**options)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    assert messages == []


def rows(page: Any, table: str) -> Any:
    return page.locator(f"#{table} tbody tr")


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    page = folder / "run.html"
    page.write_text(render_recording(write_run(folder / "run.jsonl")), "utf-8")
    return page.as_uri()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_recording_is_accessible_and_fits(
    browser: Any, recording: str, scheme: str, size: tuple[int, int]
) -> None:
    width, height = size
    viewport = {"width": width, "height": height}
    with opened(
        browser, recording, color_scheme=scheme, viewport=viewport, bypass_csp=True
    ) as page:
        page.locator("#rows").focus()
        page.keyboard.press("ArrowRight")
        sync_api.expect(page.locator("#detail")).to_contain_text("Why late")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        picture(page, f"{scheme}-{width}")
        if not AXE.exists():
            pytest.skip("without axe-core, only the layout was tested")
        page.add_script_tag(path=AXE)
        found = page.evaluate("rules => axe.run({runOnly: rules})", RULES)
        assert [(each["id"], each["nodes"]) for each in found["violations"]] == []


def test_keyboard_alone_selects_zooms_and_replays(browser: Any, recording: str) -> None:
    with opened(browser, recording) as page:
        detail, status = page.locator("#detail"), page.locator("#status")
        sync_api.expect(status).to_have_text("Recording: run.jsonl")
        while page.evaluate("document.activeElement.id") != "rows":
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        first = detail.locator("h2").inner_text()
        page.keyboard.press("ArrowDown")
        sync_api.expect(detail.locator("h2")).not_to_have_text(first)
        for key in ("ArrowLeft", "Shift+ArrowLeft", "+", "-"):
            page.keyboard.press(key)
        page.keyboard.press("Space")
        sync_api.expect(page.locator("#follow")).to_have_text("Pause")
        page.keyboard.press("Space")
        sync_api.expect(page.locator("#follow")).to_have_text("Play")
        page.locator("#moment").focus()
        page.keyboard.press("Home")
        sync_api.expect(rows(page, "queue")).to_have_text(["none"])


def test_names_are_shown_as_text(browser: Any, recording: str) -> None:
    with opened(browser, recording) as page:
        sync_api.expect(page.locator("#errors")).to_contain_text(ENGINES[-1])
        assert page.locator("img").count() == 0


def test_worker_that_left_is_listed_in_the_timeline_only(browser: Any, recording: str) -> None:
    left = {"kind": "worker", "id": "edge-000", "worker_class": "x86", "state": "left"}
    with opened(browser, recording) as page:
        sync_api.expect(rows(page, "workers")).to_have_count(8)
        page.evaluate(
            "worker => { model.apply({at: model.at, records: [worker]}); refresh(); }", left
        )
        sync_api.expect(rows(page, "workers")).to_have_count(7)
        assert page.evaluate("shownRows.length") == 8


def test_engines_are_listed_with_where_they_run_and_why(browser: Any, recording: str) -> None:
    engines = ["net", "cut.s0-4/2", "by-hand.s0-3"]
    worker = {"kind": "worker", "id": "box", "worker_class": "x86", "engines": engines}
    made = {"kind": "deployment", "id": "cut/2", "state": "loading", "where": "s0-4 on box"}
    failed = {"kind": "deployment", "id": "big", "state": "failed", "why": "it fits no worker"}
    with opened(browser, recording) as page:
        page.evaluate(
            "records => { model.reset(); model.apply({at: 9, records}); refresh(); }",
            [worker, made, failed],
        )
        sync_api.expect(rows(page, "engines")).to_have_text(
            [
                "bigfailed\N{EN DASH}it fits no worker",
                "by-handstagess0-3 on box\N{EN DASH}",
                "cut/2loadings0-4 on box\N{EN DASH}",
                "netwholebox\N{EN DASH}",
            ]
        )
        gone = {"kind": "deployment", "id": "big", "state": "gone"}
        page.evaluate("gone => { model.apply({at: 9, records: [gone]}); refresh(); }", gone)
        sync_api.expect(rows(page, "engines")).to_have_count(3)


def test_timeline_of_a_thousand_workers_is_smooth(browser: Any, tmp_path: Path) -> None:
    page_file = tmp_path / "large.html"
    log = write_run(tmp_path / "large.jsonl", workers=1000, assignments=10_000)
    page_file.write_text(render_recording(log), "utf-8")
    with opened(browser, page_file.as_uri()) as page:
        sync_api.expect(page.locator("#figures")).to_contain_text("1000")
        took = page.evaluate(
            """() => {
                const all = [];
                for (let turn = 0; turn < 50; turn++) {
                    rowsBox.scrollTop = turn * 600;
                    const began = performance.now();
                    draw();
                    all.push(performance.now() - began);
                }
                const began = performance.now();
                refresh();
                return [all.sort((one, other) => one - other)[45], performance.now() - began];
            }"""
        )
        print(f"90 % of drawings within {took[0]:.1f} ms, tables in {took[1]:.1f} ms")
        picture(page, "thousand")


def test_live_page_follows_requests_and_a_restart(browser: Any, tmp_path: Path) -> None:
    zoo.build("onnx_identity", tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(models=tmp_path / "models")
        fleet.wait_for_workers(1)
        with opened(browser, f"http://{fleet.http_address}/fleet") as page:
            status = page.locator("#status")
            sync_api.expect(status).to_have_text("Live")
            sync_api.expect(rows(page, "workers")).to_have_count(1)
            for _ in range(20):
                with urlopen(f"http://{fleet.http_address}{INFER}", REQUEST, timeout=20):
                    pass
            sync_api.expect(page.locator("#errors")).to_contain_text("onnx_identity")
            sync_api.expect(page.locator("#figures")).to_contain_text(re.compile(r"0\.[1-9]/s"))
            # Nothing takes a microsecond. A header could expire while the body is being read.
            late = REQUEST[:-1] + b', "id": "frame-7", "parameters": {"timeout": 1}}'
            with pytest.raises(HTTPError, match="429"):
                urlopen(f"http://{fleet.http_address}{INFER}", late, timeout=20)
            explained = page.evaluate(
                """async () => {
                    const facts = document.createElement("dl");
                    await explain("frame-7", facts);
                    return facts.textContent;
                }"""
            )
            assert explained.startswith("Explained")
            picture(page, "live")
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{fleet.http_address}/fleet")
        sync_api.expect(page.locator("#status")).to_have_text("Live")
        fleet.kill("gateway")
        sync_api.expect(page.locator("#status")).to_contain_text("trying again")
        time.sleep(1)
        fleet.start_gateway(models=tmp_path / "models")
        sync_api.expect(page.locator("#status")).to_have_text("Live", timeout=20_000)
        sync_api.expect(rows(page, "workers")).to_contain_text(["serving"], timeout=20_000)
        context.close()


def test_page_asks_for_a_token_that_may_observe(browser: Any, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"a token").hexdigest()
    table = tmp_path / "access.toml"
    table.write_text(
        f'[[clients]]\nname = "ops"\ntoken_sha256 = "{digest}"\n'
        '[[grants]]\nto = ["ops"]\nroles = ["observe"]\n'
    )
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--access", str(table)])
        # Refusals are in the console.
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{fleet.http_address}/fleet")
        for token in ("another token", "a token"):
            sync_api.expect(page.locator("#status")).to_have_text("Signed out")
            page.locator("#token").fill(token)
            page.keyboard.press("Enter")
        sync_api.expect(page.locator("#status")).to_have_text("Live")
        sync_api.expect(page.locator("#sign-in")).to_be_hidden()
        context.close()
