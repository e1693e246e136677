# SPDX-License-Identifier: Apache-2.0
"""What a vendor's module is told, and that it is taken back: on a tree of plain files laid out as such modules do."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairsched.act.shares import LEASE_NS, ShareFiles
from fairsched.base.process import ProcessId
from fairsched.cgroup import share_file
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.path import Mount
from fairsched.cgroup.release import ReleaseKind, release_all
from fairsched.config import Config, from_bytes
from fairsched.errors import ConfigError, KernelRefused
from fairsched.gpu.nvml import Gpu
from fairsched.guardian.loop import Keeper
from fairsched.model import TenantSpec

S = 1_000_000_000
IDS = {name: letter * 64 for name, letter in (("chat", "a"), ("batch", "b"), ("more", "c"))}
GPUS = (Gpu("GPU-5f2c1a90", 0), Gpu("GPU-77777777", 1))


class World:
    """A module's directory below a temporary one, and tenants with a container each."""

    def __init__(self, tmp_path: Path) -> None:
        self.proc, self.run_dir = tmp_path / "cgpu_km", tmp_path / "run"
        self.now_ns = S
        self.tree = SimpleNamespace(paths={}, tenants={})
        self.specs: dict[str, TenantSpec] = {}
        self.config = self.load()
        self.shares = ShareFiles(self.run_dir, self.tree, GPUS, clock_ns=lambda: self.now_ns)  # type: ignore[arg-type]

    def load(self) -> Config:
        layout = f"{self.proc}/{{gpu}}/{{container12}}"
        text = (
            "mode: enforce\nmechanisms: {brake: cgpu}\n"
            f"cgpu: {{share_file: '{layout}/weight', cap_file: '{layout}/quota'}}\n"
        )
        return from_bytes(text.encode(), "f")

    def add(self, tenant: str, container: str | None = None, gpu: int = 0, **spec: object) -> None:
        """A container of a tenant, of which the module knows."""
        name = container or tenant
        key = 100 + len(self.tree.paths)
        self.tree.paths[key] = f"/system.slice/docker-{IDS[name]}.scope"
        self.tree.tenants.setdefault(tenant, SimpleNamespace(name=tenant, cgroup_ids=set())).cgroup_ids.add(
            key
        )
        self.specs.setdefault(tenant, TenantSpec(tenant, **spec))  # type: ignore[arg-type]
        directory = self.proc / str(gpu) / IDS[name][:12]
        directory.mkdir(parents=True)
        for file in ("weight", "quota"):
            (directory / file).write_text("100\n")

    def file(self, container: str, name: str = "weight", gpu: int = 0) -> Path:
        return self.proc / str(gpu) / IDS[container][:12] / name

    def says(self, container: str, name: str = "weight", gpu: int = 0) -> str:
        return self.file(container, name, gpu).read_text().strip()

    def poll(self, after_s: float = 1, *, is_wanted: bool = True) -> None:
        self.now_ns += int(after_s * S)
        self.shares.poll(self.config, self.specs, is_wanted=is_wanted)

    @property
    def entries(self) -> list[Entry]:
        return [entry for entry in Journal(str(self.run_dir / "holds")).entries() if isinstance(entry, Entry)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.shares.close()


def test_weights_become_percentages_and_quotas_caps(world: World) -> None:
    world.add("chat", weight=3.0)
    world.add("batch", weight=1.0, quota_ratio=0.2)
    world.poll()
    assert (world.says("chat"), world.says("batch")) == ("80", "20")  # what a quota leaves is the others'
    assert (world.says("chat", "quota"), world.says("batch", "quota")) == ("100", "20")


def test_all_together_never_exceed_the_gpu_and_nobody_gets_nothing(world: World) -> None:
    world.add("chat", weight=1000.0)
    world.add("batch", weight=1.0)
    world.poll()
    assert (world.says("chat"), world.says("batch")) == ("99", "1")


def test_containers_of_one_tenant_divide_its_share(world: World) -> None:
    world.add("chat")
    world.add("batch")
    world.add("batch", "more")
    world.poll()
    assert [world.says(name) for name in ("chat", "batch", "more")] == ["50", "25", "25"]


def test_only_who_is_on_a_gpu_counts_there(world: World) -> None:
    world.add("chat")
    world.add("batch", gpu=1)
    world.poll()
    assert (world.says("chat"), world.says("batch", gpu=1)) == ("100", "100")


def test_who_is_exempt_is_not_touched(world: World) -> None:
    world.add("chat", is_exempt=True)
    world.add("batch")
    world.poll()
    assert (world.says("chat"), world.says("batch")) == ("100", "50")


def test_a_file_is_on_record_before_it_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("chat")
    world.add("batch")
    unrecorded: list[str] = []
    write = share_file.write

    def seeing_write(path: str, value: str) -> None:
        if not any(file.path == path and file.after == value for one in world.entries for file in one.files):
            unrecorded.append(path)
        write(path, value)

    monkeypatch.setattr("fairsched.act.shares.write", seeing_write)
    world.poll()
    assert (world.says("chat"), unrecorded) == ("50", [])


def test_leaving_puts_back_what_was_there_before_us(world: World) -> None:
    world.add("chat", weight=3.0)
    world.add("batch", quota_ratio=0.5)
    world.file("chat").write_text("70\n")
    world.poll()
    world.specs["batch"] = TenantSpec("batch", weight=3.0, quota_ratio=0.5)
    world.poll()
    assert world.says("chat") == "50"
    world.shares.close()
    assert (world.says("chat"), world.says("batch"), world.says("batch", "quota")) == ("70", "100", "100")
    assert world.entries == []


def test_who_does_not_want_it_any_more_has_nothing_left(world: World) -> None:
    world.add("chat")
    world.add("batch")
    world.poll()
    assert world.says("chat") == "50"
    for _ in range(2):
        world.poll(is_wanted=False)
        assert (world.says("chat"), world.entries) == ("100", [])


def test_what_somebody_else_writes_is_theirs(world: World) -> None:
    world.add("chat")
    world.add("batch")
    world.poll()
    world.file("chat").write_text("33\n")
    for _ in range(3):
        world.poll()
    assert (world.says("chat"), world.says("batch")) == ("33", "50")
    world.shares.close()
    assert (world.says("chat"), world.says("batch")) == ("33", "100")


def test_a_container_that_is_gone_is_off_the_record(world: World) -> None:
    world.add("chat")
    world.add("batch")
    world.poll()
    key = next(iter(world.tree.tenants["batch"].cgroup_ids))
    del world.tree.tenants["batch"], world.tree.paths[key]
    for name in ("weight", "quota"):
        world.file("batch", name).unlink()
    world.file("batch").parent.rmdir()
    world.poll()
    assert world.says("chat") == "100"
    assert [entry.tenant for entry in world.entries] == ["chat"]


def test_a_file_that_does_not_keep_what_is_written_is_left_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("chat")
    world.add("batch")

    def refuse(path: str, value: str) -> None:
        raise KernelRefused(path, 22, f"cannot write {value!r}")

    monkeypatch.setattr("fairsched.act.shares.write", refuse)
    world.poll()
    assert (world.says("chat"), world.entries) == ("100", [])


def test_without_a_journal_nothing_is_written(world: World) -> None:
    world.add("chat")
    world.add("batch")
    holds = world.run_dir / "holds"
    holds.rmdir()
    holds.write_text("a file in the way")
    world.poll()
    assert (world.says("chat"), world.says("batch")) == ("100", "100")
    holds.unlink()
    world.poll()
    assert (world.says("chat"), world.says("batch")) == ("50", "50")


def test_a_record_that_somebody_deletes_is_made_again(world: World) -> None:
    world.add("chat")
    world.add("batch", weight=3)
    world.poll()
    shutil.rmtree(world.run_dir / "holds")
    world.poll()
    assert [file.before for entry in world.entries for file in entry.files] == ["100", "100"]
    world.shares.close()
    assert (world.says("chat"), world.says("batch")) == ("100", "100")


def test_a_record_is_renewed_long_before_its_deadline_and_not_each_second(world: World) -> None:
    world.add("chat")
    world.poll()
    (first,) = world.entries
    world.poll()
    assert world.entries == [first]
    world.poll(LEASE_NS / S / 2)
    (later,) = world.entries
    assert (later.name, later.deadline_ns) == (first.name, world.now_ns + LEASE_NS)


@pytest.fixture
def guard() -> Iterator[Callable[[Journal, Mount], Keeper]]:
    """Makes a guardian of this process; it takes SIGTERM of it meanwhile."""
    term = signal.getsignal(signal.SIGTERM)
    yield lambda journal, mount: Keeper(ProcessId.me(), journal, mount, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, term)


def test_release_and_the_guardian_put_back_what_a_dead_daemon_has_left(
    world: World, guard: Callable[[Journal, Mount], Keeper]
) -> None:
    world.add("chat")
    world.add("batch")
    world.poll()
    world.file("batch").write_text("7\n")
    journal, mount = Journal(str(world.run_dir / "holds")), Mount("/nowhere")
    kinds = {one.tenant: one.kind for one in release_all(journal, mount)}
    assert kinds == {"chat": ReleaseKind.THAWED, "batch": ReleaseKind.NOT_FROZEN}
    assert (world.says("chat"), world.says("batch"), journal.entries()) == ("100", "7", [])
    world.poll()  # the daemon lives, and goes on
    assert world.says("chat") == "50"
    (entry,) = world.entries
    journal.write(dataclasses.replace(entry, deadline_ns=1))
    keeper = guard(journal, mount)
    keeper._refresh()
    keeper._enforce_deadlines()
    assert world.says("chat") == "100"


def test_a_link_in_place_of_a_file_is_not_followed(world: World, tmp_path: Path) -> None:
    world.add("chat")
    world.add("batch")
    (tmp_path / "victim").write_text("100\n")
    world.file("chat").unlink()
    world.file("chat").symlink_to(tmp_path / "victim")
    world.poll()
    assert (tmp_path / "victim").read_text() == "100\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mechanisms: {brake: cgpu}", "cgpu.share_file names no file that takes the shares"),
        ("cgpu: {share_file: /proc/cgpu_km/0/weight}", "{container} or {container12} is needed"),
        ("cgpu: {share_file: '/proc/{pod}/{container}'}", "no other braces"),
        ("cgpu: {share_file: '/proc/{container!r}'}", "no other braces"),
        ("cgpu: {share_file: '/proc/{container}/{'}", "no other braces"),
        ("cgpu: {share_file: 'proc/{container}'}", "an absolute path"),
        ("cgpu: {share_file: '/proc/../{container}'}", "without '..'"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        from_bytes(text.encode(), "f")
    assert says in str(caught.value)
