# SPDX-License-Identifier: Apache-2.0
"""What is done about the driver beside the daemon's loop: asking it which GPU is which, loading the probe.

Problem: compiling takes seconds, /proc/kallsyms is long, and a driver that hangs keeps whoever asks it something.

Approach: each of these runs in a thread of its own. The loop asks from time to time whether it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

from fairsched.bpf import abi
from fairsched.driver import devices, hooks, inventory
from fairsched.driver.probe import DriverProbe, start

T = TypeVar("T")


class Beside(Generic[T]):
    """A thread that does one thing; ``drop`` is given a result that nobody takes, and is called in that thread."""

    def __init__(self, work: Callable[[], T], drop: Callable[[T], None] | None = None) -> None:
        self._work, self._drop = work, drop
        self._result: T | None = None
        self._error: Exception | None = None
        self._is_abandoned = False
        self._lock = threading.Lock()
        # A daemon thread: who ends us waits neither for a compiler nor for a driver that hangs.
        self.thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            result = self._work()
        except Exception as error:  # whatever it is, it is told to whoever takes the result
            self._error = error
            return
        with self._lock:
            if not self._is_abandoned:
                self._result = result
                return
        self._throw_away(result)

    def _throw_away(self, result: T) -> None:
        if self._drop is not None:
            self._drop(result)

    @property
    def is_running(self) -> bool:
        return self.thread.is_alive()

    def take(self) -> T:
        """The result; waits for it. Raises what the work has raised."""
        self.thread.join()
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def abandon(self) -> None:
        """Nobody will take it. A result that is there already is dropped here."""
        with self._lock:
            is_there, self._is_abandoned = self._result is not None, True
            result, self._result = self._result, None
        if is_there:
            self._throw_away(cast(T, result))


class Seen(NamedTuple):
    """The driver as it is at one moment; told from another moment's by comparing."""

    module: int | None
    """Another number each time it is loaded; None = it is not."""
    uvm: int | None
    """The same of the unified memory driver."""
    devices: object
    """Its GPUs and device numbers, as inventory.signature."""


@dataclass(frozen=True)
class Place:
    """Where the driver is looked for, and which slots of ours its GPUs have."""

    slot_by_uuid: Mapping[str, int]
    dev: Path
    """Has the driver's nodes, or plain files for a simulated one."""
    proc: Path = Path("/proc")
    modules: Path = inventory.MODULES

    def read(self) -> Seen:
        """Reads a few small files, and asks the driver nothing."""
        module, uvm = (self.modules / one.name for one in (inventory.MODULE, inventory.UVM_MODULE))
        identities = inventory.module_identity(module), inventory.module_identity(uvm)
        return Seen(*identities, inventory.signature(self.proc))

    def is_changing(self) -> bool:
        """The module is being loaded or taken out: its functions cannot all be probed."""
        module = self.modules / inventory.MODULE.name
        return (module / "initstate").exists() and inventory.module_identity(module) is None

    def plain_nodes(self) -> dict[Path, abi.Node]:
        """Files that stand for the driver's nodes; empty where there are real ones or none."""
        try:
            found = devices.plain_nodes(self.dev)
        except OSError:
            return {}
        return {path: node for path, node in found.items() if path.is_file()}

    def majors(self) -> dict[int, abi.Node]:
        return devices.read_majors(self.proc)

    def ask_instances(self) -> devices.Instances:
        """Opens the driver, and does not come back where that hangs."""
        return devices.find_instances(self.slot_by_uuid, self.proc, self.dev)


@dataclass(frozen=True)
class Loaded:
    """A probe that is attached and knows its nodes and GPUs."""

    probe: DriverProbe
    instances: devices.Instances
    since_ns: int
    """CLOCK_MONOTONIC: calls are seen from then on."""

    def close(self) -> None:
        self.probe.close()


def load(place: Place) -> Loaded:
    """Takes seconds. Raises HostUnsupported or OSError."""
    instances, plain = place.ask_instances(), place.plain_nodes()
    probe = start(hooks.read_facts(), with_plain_nodes=bool(plain))
    try:
        probe.set_instances(instances.slot_of)
        if plain:
            probe.set_plain_nodes(plain)
        # From here on calls are taken for the driver's: whatever they name is known.
        probe.set_majors(place.majors())
        return Loaded(probe, instances, time.monotonic_ns())
    except BaseException:
        probe.close()
        raise
