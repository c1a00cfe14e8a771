"""Rules for the index page of the HTTP port."""

from gateway.http.pages import engine_rows
from synergai.oip.repository_pb2 import RepositoryIndexResponse

ModelIndex = RepositoryIndexResponse.ModelIndex


def test_each_version_links_to_its_own_description() -> None:
    models = [ModelIndex(name="vers", version=version, state="READY") for version in ("1", "3")]
    first, second = engine_rows(models).splitlines()
    assert '<a href="/v2/models/vers/versions/1">vers</a>' in first
    assert '<a href="/v2/models/vers/versions/3">vers</a>' in second


def test_engine_without_a_known_version_links_to_its_description() -> None:
    assert '<a href="/v2/models/new">new</a></td><td>-</td>' in engine_rows(
        [ModelIndex(name="new")]
    )
