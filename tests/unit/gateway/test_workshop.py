"""Where the gateway cuts engines."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.deployment.workshop import Workshop
from gateway.hub.store.pushes import KEEP_FREE_BYTES
from gateway.hub.store.store import EngineStore
from synergai.errors import Overloaded
from tests.unit.gateway.test_deployment import NET, stored


class Store:
    """A store whose content is of zeros."""

    async def read(self, _sha256: str, _offset: int, size: int) -> bytes:
        return bytes(min(size, 1000))


async def test_engine_is_copied_if_that_leaves_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = KEEP_FREE_BYTES + 1999
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    shop = Workshop(cast("EngineStore", Store()), tmp_path / "workshop")
    with pytest.raises(Overloaded, match="no room for 2,000 to cut engine 'net'"):
        await shop.bring(stored(NET))
    assert not list(shop.models.rglob("model.onnx"))
    free += 1
    await shop.bring(stored(NET))
    [model] = shop.models.rglob("model.onnx")
    assert model.stat().st_size == 1000
