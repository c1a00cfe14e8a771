"""A cluster for the tests of all modules that install the chart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.kubernetes_cluster import Cluster
from tests.acceptance.kubernetes_release import provided_volume, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folders = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("k8s")
    with running_cluster(*folders) as cluster:
        yield cluster


@pytest.fixture
def volume(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    with provided_volume(cluster, tmp_path):
        yield
