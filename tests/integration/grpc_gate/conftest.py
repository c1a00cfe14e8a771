"""Both servers, each in a process."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.gate.server import SERVERS, Running, running


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """The servers by name; none of them may log anything."""
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(name, folder / name)) for name in SERVERS}
    assert "Traceback" not in (folder / "native").read_text()
