# SPDX-License-Identifier: Apache-2.0
"""What is set is in force, and answered, when the disk has it; nobody else waits for the disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.base.wait import is_readable
from fairsched.config import load_overrides
from fairsched.config.settings import MOST_WAITING, Settings
from fairsched.errors import ConfigError, FairschedError
from tests.unit.config.kept import PATIENCE_S, answer, set_tenant


class Disk:
    """Keeps a file when it is told to, so many times, or fails; ``begun`` is how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may = threading.Semaphore(0)
        self._asked = threading.Semaphore(0)
        self.begun, self.error, fsync = 0, False, os.fsync

        def slow(descriptor: int) -> None:
            self.begun += 1
            self._asked.release()
            assert threading.current_thread() is not threading.main_thread(), "the loop's"
            assert self._may.acquire(timeout=PATIENCE_S)
            if self.error:
                raise OSError(5, os.strerror(5))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)

    def wait_asked(self) -> None:
        assert self._asked.acquire(timeout=PATIENCE_S)

    def go(self, times: int = 1000) -> None:
        self._may.release(times)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk(monkeypatch)
    yield found
    found.go()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fairsched.yaml"
    write(path)
    return path


def write(path: Path, train: str = "") -> None:
    path.write_text(
        f"state_dir: {path.parent / 'state'}\n"
        f"tenants:\n  chat: {{cgroup: /gpu/chat, weight: 2}}\n  train: {{cgroup: /gpu/train{train}}}\n"
    )


def weights(settings: Settings) -> tuple[float, float]:
    specs = settings.config.tenant_specs()
    return specs["chat"].weight, specs["train"].weight


def kept(settings: Settings) -> dict[str, float]:
    """Weights in the file, as the next start finds them."""
    found = load_overrides(settings.config.overrides_path)
    return {name: values["weight"] for name, values in found.tenants.items()}


def test_an_answer_is_given_when_the_disk_has_it_and_no_sooner(file: Path, disk: Disk) -> None:
    """At every moment before, a crash leaves what was there; nobody was told otherwise."""
    settings = Settings(file)
    later = settings.set_tenant("chat", {"weight": 7})
    for step in ("the file", "its name"):
        disk.wait_asked()
        settings.settle()
        assert not later.is_there and weights(settings) == (2, 1), step
        assert kept(Settings(file)) == ({} if step == "the file" else {"chat": 7})
        disk.go(1)
    assert answer(settings, later) == ["tenants.chat.weight 2 -> 7"]
    assert weights(settings) == (7, 1) and weights(Settings(file)) == (7, 1)


def test_changes_that_come_meanwhile_are_kept_together_and_in_order(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    first = settings.set_tenant("chat", {"weight": 3})
    disk.wait_asked()
    more = [settings.set_tenant("chat", {"weight": weight}) for weight in (4, 5)]
    wrong = settings.set_tenant("chat", {"weight": -1})
    other = settings.set_tenant("train", {"weight": 9})
    back = settings.unset_tenant("chat", [])
    disk.go()
    assert answer(settings, first) == ["tenants.chat.weight 2 -> 3"]
    assert [answer(settings, one) for one in more] == [
        ["tenants.chat.weight 3 -> 4"],
        ["tenants.chat.weight 4 -> 5"],
    ]
    with pytest.raises(ConfigError, match="more than 0"):
        answer(settings, wrong)
    assert answer(settings, other) == ["tenants.train.weight 1 -> 9"]
    assert answer(settings, back) == ["tenants.chat.weight 5 -> 2"]
    assert disk.begun == 4, "file and directory, twice"
    assert weights(settings) == (2, 9) and kept(settings) == {"train": 9}


def test_what_was_not_kept_was_not_changed_and_what_came_after_it_does_not_build_on_it(
    file: Path, disk: Disk
) -> None:
    settings = Settings(file)
    disk.error = True
    first = settings.set_tenant("chat", {"weight": 3})
    disk.wait_asked()
    after = settings.set_tenant("train", {"weight": 9})
    disk.go(1)
    assert is_readable(settings, PATIENCE_S)
    settings.settle()
    with pytest.raises(FairschedError, match="nothing was changed"):
        first.take()
    disk.error = False
    disk.go()
    assert answer(settings, after) == ["tenants.train.weight 1 -> 9"]
    assert weights(settings) == (2, 9) and kept(settings) == {"train": 9}


def test_a_file_or_pods_that_do_not_fit_what_is_about_to_be_kept_are_refused(file: Path, disk: Disk) -> None:
    """Who was told that it is kept would otherwise find it not in force."""
    settings = Settings(file)
    later = settings.set_tenant("chat", {"min": 0.9})
    disk.wait_asked()
    write(file, ", min: 0.9")
    with pytest.raises(ConfigError, match="add up"):
        settings.reload()
    with pytest.raises(ConfigError, match="add up"):
        settings.set_pods({"web": {"match": {"pod": "web/*"}, "min": 0.9}})
    disk.go()
    assert answer(settings, later)
    assert settings.config.tenant_specs()["chat"].min_ratio == 0.9


def test_what_pods_come_to_does_not_wait_for_what_is_being_kept(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    later = settings.set_tenant("chat", {"weight": 7})
    disk.wait_asked()
    settings.set_pods({"web": {"match": {"pod": "web/*"}, "weight": 5}})
    assert settings.config.tenant_specs()["web"].weight == 5
    disk.go()
    assert answer(settings, later)
    assert settings.config.tenant_specs()["web"].weight == 5, "and is not forgotten for it"
    assert weights(settings) == (7, 1)
    settings.close()


def test_overrides_that_are_being_kept_go_before_those_that_did_not_fit(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    disk.go()
    set_tenant(settings, "chat", {"min": 0.9})
    write(file, ", min: 0.9")
    settings = Settings(file)
    assert settings.overrides_warning is not None
    later = settings.set_tenant("train", {"weight": 3})
    write(file)
    settings.reload()
    assert answer(settings, later)
    assert weights(settings) == (2, 3) and "kept as" in (settings.overrides_warning or "")


def test_a_fault_in_one_change_is_not_that_of_those_beside_it(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    first = settings.set_tenant("chat", {"weight": 3})
    disk.wait_asked()
    fault = settings._override(lambda before: 1 / 0)  # type: ignore[arg-type,return-value]
    after = settings.set_tenant("train", {"weight": 9})
    disk.go()
    assert answer(settings, first) and answer(settings, after)
    with pytest.raises(ZeroDivisionError):
        fault.take()
    assert weights(settings) == (3, 9)


def test_a_disk_that_answers_nobody_does_not_fill_the_memory(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    settings.set_tenant("chat", {"weight": 3})
    disk.wait_asked()
    many = [settings.set_tenant("chat", {"weight": number + 4}) for number in range(MOST_WAITING + 1)]
    with pytest.raises(FairschedError, match="nothing was changed"):
        many[-1].take()
    assert not any(one.is_there for one in many[:-1])
    disk.go()
    assert answer(settings, many[-2]) and weights(settings)[0] == MOST_WAITING + 3


def test_a_host_without_a_thread_to_spare_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    settings = Settings(file)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(FairschedError, match="no thread could be started for it; nothing was changed"):
            set_tenant(settings, "chat", {"weight": 7})
    assert weights(settings) == (2, 1)
    assert set_tenant(settings, "chat", {"weight": 7})
    settings.close()


def test_the_end_waits_for_what_is_being_kept(file: Path, disk: Disk) -> None:
    settings = Settings(file)
    settings.set_tenant("chat", {"weight": 7})
    disk.wait_asked()
    disk.go()
    settings.close()
    assert kept(Settings(file)) == {"chat": 7}
