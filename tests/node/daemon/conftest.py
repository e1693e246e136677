# SPDX-License-Identifier: Apache-2.0
"""The real daemon on a real kernel; only the GPU is simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup.path import Mount
from tests.node.daemon.site import Site

MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path, mount: Mount) -> Iterator[MakeSite]:
    """make_site(gpus=2) -> Site, closed at the end with everything in it."""
    del mount  # skips where there is none
    with contextlib.ExitStack() as stack:

        def make(gpus: int = 1, **nature: Any) -> Site:
            site = Site(tmp_path, gpus, **nature)
            stack.callback(site.close)
            return site

        yield make


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory, mount: Mount) -> Iterator[Site]:
    """One for all tests of a file, which leave it as they found it."""
    del mount
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        site.close()
