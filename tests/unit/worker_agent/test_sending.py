"""Engines of the model directory that the gateway asks for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from synergai.domain import EngineName
from synergai.errors import SynergaiError, Unavailable
from synergai.models.manifest import content_digest, read_manifest
from synergai.v1 import hub_pb2, store_pb2
from worker_agent.placements.sending import send_engine

if TYPE_CHECKING:
    from pathlib import Path

    from worker_agent.placements.sending import ReadContents

MODEL = bytes(range(256)) * 2000


class Gateway:
    """A gateway that has some bytes of each content already, or refuses the engine."""

    def __init__(self, received: int = 0, refuses: SynergaiError | None = None) -> None:
        self.received = received
        self.refuses = refuses
        self.heads: list[hub_pb2.EngineChunk] = []
        self.data = b""

    async def send(self, head: hub_pb2.EngineChunk, read: ReadContents) -> None:
        self.heads.append(head)
        if self.refuses is not None:
            raise self.refuses
        files = read_manifest(head.manifest).files if head.manifest else ()
        missing = [
            store_pb2.MissingContent(sha256=each.sha256, size=each.size, received=self.received)
            for each in files
        ]
        async for data in read(missing):
            self.data += data


def models(folder: Path) -> Path:
    """Return a model directory with an engine in two versions."""
    for name in ("net", "net/2"):
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(MODEL + name.encode())
    return folder


@pytest.mark.parametrize("received", [0, 100])
@pytest.mark.parametrize("name", ["net", "net/2"])
async def test_version_is_sent_as_it_would_be_pushed_from_any_byte(
    tmp_path: Path, name: str, received: int
) -> None:
    gateway = Gateway(received)
    await send_engine(models(tmp_path), EngineName(name), gateway.send)
    [head] = gateway.heads
    assert (head.engine, head.fault) == (name, "")
    model = MODEL + name.encode()
    assert read_manifest(head.manifest).model_sha256 == content_digest(model)
    assert gateway.data == model[received:]


async def test_gateway_is_told_why_an_engine_cannot_be_sent(tmp_path: Path) -> None:
    gateway = Gateway()
    await send_engine(models(tmp_path), EngineName("other"), gateway.send)
    (tmp_path / "net" / "2" / "second.onnx").write_bytes(MODEL)
    await send_engine(tmp_path, EngineName("net/2"), gateway.send)
    first, second = (each.fault for each in gateway.heads)
    assert "no engine 'other'" in first
    assert "second" in second


async def test_engine_that_the_gateway_refuses_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        gateway = Gateway(refuses=Unavailable("it has no room"))
        await send_engine(models(tmp_path), EngineName("net"), gateway.send)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "it has no room" in record.getMessage()
