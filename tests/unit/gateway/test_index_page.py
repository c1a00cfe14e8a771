"""Rules for the index page of the HTTP port."""

from gateway.calls.http.pages import engine_rows
from synergai.oip.repository_pb2 import RepositoryIndexResponse

ModelIndex = RepositoryIndexResponse.ModelIndex


def test_engine_without_a_known_version_links_to_its_description() -> None:
    assert '<a href="v2/models/new">new</a></td><td>-</td>' in engine_rows([ModelIndex(name="new")])
