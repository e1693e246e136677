# SPDX-License-Identifier: Apache-2.0
"""A tier of its own: one cluster for the whole run. ``sudo make setup-k8s`` once, then ``sudo make test-k8s``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.k8s import kueue
from tests.k8s.cluster import Cluster
from tests.k8s.places import SLOWER, why_not
from tests.k8s.release import compile_beforehand


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with Kueue are the last: it is started once, and admits every pod from then on."""
    items.sort(key=lambda item: "with_kueue" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    if SLOWER > 1:
        compile_beforehand()
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def with_kueue(cluster: Cluster) -> None:
    if reason := kueue.why_not():
        pytest.skip(reason)
    kueue.start(cluster)
