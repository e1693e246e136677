# SPDX-License-Identifier: Apache-2.0
"""The stages on which brakes are asked for their promises: a tree of plain files, and what others may do to it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod

from fairsched.cgroup.brake import Brake
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef
from tests.support import FakeTree


class Stage(ABC):
    """One brake and its world. ``end`` undoes what the test has left of it."""

    def __init__(self, fake: FakeTree, journal: Journal) -> None:
        self.fake, self.journal, self.mount = fake, journal, fake.mount
        self.brake = self.make_brake()
        self._refs: list[CgroupRef] = []

    @abstractmethod
    def make_brake(self) -> Brake: ...

    @abstractmethod
    def is_held(self, name: str) -> bool:
        """Whether it stands still, whoever made it."""

    @abstractmethod
    def pause(self, name: str) -> None:
        """What somebody else does to stop it."""

    @abstractmethod
    def unpause(self, name: str) -> None:
        """What somebody else does to let it go."""

    def make(self, name: str) -> CgroupRef:
        """A cgroup with something in it that can be held."""
        ref = self.fake.make(name)
        self._refs.append(ref)
        return ref

    @abstractmethod
    def come_to_rest(self, name: str) -> None:
        """Do what the missing kernel would do when the processes have stopped."""

    def remove(self, name: str) -> None:
        shutil.rmtree(self.fake.root / name)

    def end(self) -> None:
        self.brake.close()
        for ref in self._refs:
            ref.close()


class FreezerStage(Stage):
    def make_brake(self) -> Brake:
        return Freezer(self.journal)

    def is_held(self, name: str) -> bool:
        return self.fake.is_asked(name)

    def pause(self, name: str) -> None:
        self.fake.write_freeze(name, "1")

    def unpause(self, name: str) -> None:
        self.fake.write_freeze(name, "0")
        (self.fake.root / name / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    def come_to_rest(self, name: str) -> None:
        self.fake.settle(name)


STAGES: dict[str, type[Stage]] = {"freezer": FreezerStage}
