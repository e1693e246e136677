# SPDX-License-Identifier: Apache-2.0
"""A made host, its tools, and the SDK's own client on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.reclaim.mcp.fake import FakeHost

pytest.importorskip("mcp")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "audit")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(host: FakeHost, clock: Clock) -> Iterator[Callable[..., Any]]:
    """A server of the made host."""
    from fairsched.reclaim.mcp.plans import Plans
    from fairsched.reclaim.mcp.server import make_server
    from fairsched.reclaim.mcp.tools import Tools

    with closing(Plans(clock)) as plans:

        def made(*, may_act: bool = True, may_force: bool = False) -> Any:
            return make_server(Tools(host, plans, may_act=may_act), may_act=may_act, may_force=may_force)

        yield made
