# SPDX-License-Identifier: Apache-2.0
"""Opening traces: for whom, when again, and when not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairsched.accounting.follow import Following
from fairsched.config import from_bytes
from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Gpu, Mig
from fairsched.gpu.trace import Switch, TraceRefused
from fairsched.observe import traces as module
from fairsched.observe.traces import Traces

ONE, TWO = Gpu("GPU-1", 0), Gpu("GPU-2", 1)
S = 1_000_000_000


class FakeNvml:
    def __init__(self, driver_version: str = "580.159.04") -> None:
        self.driver_version, self.gpus = driver_version, (ONE,)


class World:
    """What is open; ``refused``: UUIDs whose trace cannot be had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[str] = []
        self.refused: set[str] = set()
        self.tries = 0
        self.is_slow = False
        """The driver has not answered yet."""
        world = self

        class FakeThread:
            """Of :mod:`fairsched.gpu.trace_thread`, without the thread."""

            def __init__(self, _name: str, open_trace: Callable[[], str]) -> None:
                world.tries += 1
                self.refused: str | None = None
                try:
                    self.uuid = open_trace()
                    world.open.append(self.uuid)
                except TraceRefused as error:
                    self.refused = str(error)

            @property
            def is_decided(self) -> bool:
                return not world.is_slow

            def wait(self, _seconds: float) -> bool:
                return self.is_decided

            def read(self) -> tuple[list[Switch], bool]:
                return [], True

            def close(self) -> None:
                if self.refused is None:
                    world.open.remove(self.uuid)

        def opened(uuid: str, *_: Any) -> str:
            if uuid in world.refused:
                raise TraceRefused("it says no")
            return uuid

        monkeypatch.setattr(module, "TraceThread", FakeThread)
        monkeypatch.setattr(module, "GpuTrace", opened)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def traces(wish: str = "auto", driver: str = "580.159.04") -> Traces:
    config = from_bytes(f"mechanisms: {{trace: {wish}}}".encode(), "fairsched.yaml")
    return Traces(config, FakeNvml(driver))  # type: ignore[arg-type]


def test_every_gpu_has_one_and_the_end_closes_all(world: World) -> None:
    own, following = traces(), Following({})
    own.look(following, [ONE, TWO], [], 0)
    assert (world.open, following.gpus, own.reason) == (["GPU-1", "GPU-2"], {0, 1}, None)
    own.look(following, [ONE, TWO], [], S)
    assert world.tries == 2
    own.close()
    own.close()
    assert world.open == []


def test_one_that_is_refused_is_tried_again_a_minute_later(world: World) -> None:
    own, following = traces(), Following({})
    world.refused = {"GPU-2"}
    own.look(following, [ONE, TWO], [], 0)
    assert (following.gpus, own.reason) == ({0}, "GPU 1: it says no")
    own.look(following, [ONE, TWO], [], 59 * S)
    assert world.tries == 2
    world.refused.clear()
    own.look(following, [ONE, TWO], [], 60 * S)
    assert (following.gpus, own.reason) == ({0, 1}, None)


def test_one_that_was_lost_is_closed_and_opened_again(world: World) -> None:
    own, following = traces(), Following({})
    own.look(following, [ONE], [], 0)
    following.end(0)
    own.look(following, [ONE], [], 61 * S)
    assert (world.open, following.gpus, world.tries) == (["GPU-1"], {0}, 2)


def test_one_that_opens_and_fails_is_not_tried_at_each_tick(world: World) -> None:
    own, following = traces(), Following({})
    for tick in range(100):
        own.look(following, [ONE], [], tick * S // 10)
        following.end(0)
    assert world.tries == 1


def test_a_new_account_gets_them_anew(world: World) -> None:
    own = traces()
    own.look(Following({}), [ONE], [], 0)
    following = Following({})
    own.look(following, [ONE], [], S)
    assert (world.open, following.gpus) == (["GPU-1"], {0})


def test_a_gpu_of_an_mps_server_has_none_as_long_as_that_is_there(world: World) -> None:
    own, following = traces(), Following({})
    own.look(following, [ONE, TWO], ["GPU-1"], 0)
    assert following.gpus == {1}
    own.look(following, [ONE, TWO], [], S)
    assert following.gpus == {0, 1}
    own.look(following, [ONE, TWO], ["GPU-2"], 2 * S)
    assert (following.gpus, world.open) == ({0}, ["GPU-1"])


def test_a_gpu_that_is_gone_and_an_instance_have_none(world: World) -> None:
    own, following = traces(), Following({})
    own.look(following, [ONE, TWO], [], 0)
    instance = Gpu("MIG-3", 0, mig=Mig("GPU-1", 1, 0, "1g.10gb"))
    own.look(following, [replace(ONE, is_gone=True), TWO, instance], [], S)
    assert (following.gpus, world.open) == ({1}, ["GPU-2"])
    assert own.reason is not None and "MIG" in own.reason


def test_nobody_waits_for_a_driver_that_has_not_answered_yet(world: World) -> None:
    own, following = traces(), Following({})
    world.is_slow = True
    own.look(following, [ONE], [], 0)
    assert (following.gpus, world.tries) == (set(), 1)
    world.is_slow = False
    own.look(following, [ONE], [], S)
    assert (following.gpus, world.tries) == ({0}, 1)


def test_switched_off_nothing_is_tried(world: World) -> None:
    own = traces("off")
    own.look(Following({}), [ONE], [], 0)
    assert (world.tries, own.reason) == (0, "mechanisms.trace is off")


def test_required_it_keeps_the_daemon_from_starting_and_nothing_else(world: World) -> None:
    with pytest.raises(HostUnsupported, match="not known"):
        traces("required", "535.1")
    world.refused = {"GPU-1"}
    with pytest.raises(HostUnsupported, match="it says no"):
        traces("required", "550.1")
    world.refused, world.is_slow = set(), True
    with pytest.raises(HostUnsupported, match="does not answer"):
        traces("required")
    assert world.open == []
    world.is_slow = False
    own, following = traces("required"), Following({})
    own.look(following, [ONE], [], 0)
    following.end(0)
    world.refused = {"GPU-1"}
    own.look(following, [ONE], [], 61 * S)
    assert own.reason == "GPU 0: it says no"


def test_required_it_is_refused_at_the_start_and_not_in_a_tick(world: World) -> None:
    with pytest.raises(HostUnsupported, match="does not use it"):
        traces("required").begin(None, [ONE])
    traces().begin(None, [ONE])
    world.refused = {"GPU-1"}
    with pytest.raises(HostUnsupported, match="it says no"):
        traces("required").begin(Following({}), [ONE])
