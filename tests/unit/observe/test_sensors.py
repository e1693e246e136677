# SPDX-License-Identifier: Apache-2.0
"""Which account the daemon takes: what doctor says for the same host, and never a silent one.

And what it asks of that account between two reads: who is back, and how the GPUs take turns.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import ClassVar

import pytest

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, Library
from fairsched.bpf.libcuda import LibraryFile
from fairsched.cgroup.path import Mount
from fairsched.config import Config, from_bytes
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu.nvml import Gpu, GpuUse
from fairsched.host.choose import choose_source
from fairsched.model import NEVER_NS, PolicyParams, Source
from fairsched.observe import libraries as libraries_module
from fairsched.observe import sensors as sensors_module
from fairsched.observe.sensors import Sensors
from fairsched.observe.whose import Whose
from tests.unit.accounting.fake_probe import MS, FakeProbe

REFUSED = "the BPF loader was killed by SIGABRT before it had an answer"


class Host:
    """What works on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_bpf = self.has_nvml = True
        self.tried: list[str] = []
        self.told: list[tuple[object, ...]] = []
        self.accounting: str | None = None
        self.obstacle: str | None = None
        monkeypatch.setattr(sensors_module, "GpuTimeProbe", self._probe)
        monkeypatch.setattr(sensors_module, "Nvml", self._nvml)
        monkeypatch.setattr(sensors_module, "open_account", self._open_account)

    def _probe(self, _loader: object = None) -> SimpleNamespace:
        self.tried.append("ebpf")
        if not self.has_bpf:
            raise HostUnsupported(REFUSED, remedy="use a newer bcc")
        does = {"set_uuids": lambda _named, is_all: None, "close": lambda: None, "rooms": FakeProbe().rooms}
        return SimpleNamespace(limits=abi.Limits(), **does)

    def _nvml(self) -> SimpleNamespace:
        return SimpleNamespace(
            gpus=(Gpu("GPU-a"),) if self.has_nvml else (),
            error=None if self.has_nvml else "no driver",
            driver_version="550.54",
            obstacle=self.obstacle if self.has_nvml else "NVML does not work (no driver)",
            has_mig=False,
            refresh=lambda: False,
            mps_clients=dict,
            pcie=lambda _slot: {},
            use=lambda _slot: GpuUse(),
            listed=dict,
            close=lambda: None,
        )

    def _open_account(self, nvml: SimpleNamespace, _cgroup_of: object, accounting: str) -> SimpleNamespace:
        self.tried.append(f"nvml of {len(nvml.gpus)}")
        self.accounting = accounting
        told = self.told
        return SimpleNamespace(
            source=Source.NVML,
            period_ns=139_000_000,
            read=lambda now_ns: [f"rows at {now_ns}"],
            hold=lambda ids, _now_ns, *, by_others: told.append(("hold", *ids, by_others)),
            thaw=lambda ids, _now_ns: told.append(("thaw", *ids)),
            queued_since_hold_ns=lambda _ids: 0,
            scale=lambda _loads, _listed: told.append(("scaled",)),
            close=lambda: told.append(("closed",)),
        )


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def config(text: str = "mode: observe") -> Config:
    return from_bytes(text.encode(), "f")


def sensors_of(text: str = "mode: observe") -> Sensors:
    return Sensors(config(text), Whose(Mount("/sys/fs/cgroup")))


def test_the_best_account_is_taken_and_needs_no_excuse(host: Host) -> None:
    sensors = sensors_of()
    assert (sensors.source, sensors.reason, host.tried) == (Source.EBPF, None, ["ebpf"])


def test_where_bpf_is_refused_the_samples_are_taken_and_both_are_said(host: Host) -> None:
    host.has_bpf = False
    sensors = sensors_of()
    assert sensors.source is Source.NVML
    assert host.tried == ["ebpf", "nvml of 1"]
    assert sensors.reason is not None
    assert REFUSED in sensors.reason
    assert sensors.read(7) == ["rows at 7"]


def test_the_samples_are_told_of_holds_and_what_only_bpf_can_do_breaks_nothing(host: Host) -> None:
    host.has_bpf = False
    sensors = sensors_of()
    assert sensors.account is None
    sensors.hold([1], 0)
    sensors.hold([2], 0, by_others=True)
    sensors.thaw([1], 0)
    assert host.told == [("hold", 1, False), ("hold", 2, True), ("thaw", 1)]
    sensors.set_wake_on_idle(True)
    sensors.look_for_libraries([1], 0)
    sensors.close()


def test_the_law_is_slower_on_samples_and_as_it_was_on_probes(host: Host) -> None:
    params = PolicyParams()
    assert sensors_of().law(params) == params
    host.has_bpf = False
    assert sensors_of().law(params) == params.sampled(139_000_000)


class Reload:
    """Stands in for the thread that puts probes back; says when it was begun for which probes."""

    begun: ClassVar[list[object]] = []
    result: ClassVar[object] = None

    def __init__(self, lost: object) -> None:
        self.begun.append(lost)

    def take(self) -> object:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_probes_that_cannot_be_put_back_leave_the_samples_and_are_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors_module, "ProbeReload", Reload)
    monkeypatch.setattr(Reload, "begun", [])
    sensors, now_ns = sensors_of(), 0
    lost = sensors.probe
    sensors.restart(config())
    assert (sensors.source, Reload.begun) == (Source.NVML, [lost])
    monkeypatch.setattr(Reload, "result", FairschedError("no memory"))
    assert not sensors.is_restarted(config(), now_ns)
    assert (sensors.source, sensors.reason) == (Source.NVML, "no memory")
    assert not sensors.is_restarted(config(), now_ns + 59 * 10**9)
    assert len(Reload.begun) == 1
    assert not sensors.is_restarted(config(), now_ns + 61 * 10**9)
    assert Reload.begun == [lost, None]
    monkeypatch.setattr(Reload, "result", host._probe())
    assert sensors.is_restarted(config(), now_ns + 62 * 10**9)
    assert (sensors.source, sensors.sampled, sensors.reason) == (Source.EBPF, None, None)
    assert host.told == [("closed",)]


def test_without_samples_it_is_an_error_that_probes_cannot_be_put_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors_module, "ProbeReload", Reload)
    host.has_nvml = False
    sensors = sensors_of()
    sensors.restart(config())
    assert sensors.source is None
    monkeypatch.setattr(Reload, "result", FairschedError("no memory"))
    with pytest.raises(FairschedError, match="no memory"):
        sensors.is_restarted(config(), 0)


@pytest.mark.parametrize("text", ["mechanisms: {ebpf: required}", "gpu: {source: ebpf}"])
def test_where_probes_are_required_no_sample_takes_their_place(
    host: Host, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(sensors_module, "ProbeReload", Reload)
    sensors = sensors_of(text)
    sensors.restart(config(text))
    assert (sensors.source, host.tried) == (None, ["ebpf"])
    monkeypatch.setattr(Reload, "result", FairschedError("no memory"))
    with pytest.raises(FairschedError, match="no memory"):
        sensors.is_restarted(config(text), 0)


def test_where_nothing_works_the_daemon_refuses_and_says_why(host: Host) -> None:
    host.has_bpf = host.has_nvml = False
    with pytest.raises(HostUnsupported, match=f"{REFUSED}.*no driver") as caught:
        sensors_of()
    assert "doctor" in caught.value.remedy


@pytest.mark.parametrize("text", ["mechanisms: {ebpf: required}", "gpu: {source: ebpf}"])
def test_what_is_asked_for_by_name_has_no_fallback(host: Host, text: str) -> None:
    host.has_bpf = False
    with pytest.raises(HostUnsupported, match="SIGABRT"):
        sensors_of(text)


@pytest.mark.parametrize("text", ["mechanisms: {ebpf: off}", "gpu: {source: nvml}"])
def test_what_is_switched_off_is_not_tried(host: Host, text: str) -> None:
    sensors = sensors_of(text)
    assert (sensors.source, host.tried) == (Source.NVML, ["nvml of 1"])
    assert host.accounting == "auto"


@pytest.mark.parametrize("has_bpf", [True, False])
@pytest.mark.parametrize("has_nvml", [True, False])
@pytest.mark.parametrize("wanted", ["auto", "ebpf", "nvml"])
def test_the_daemon_takes_what_doctor_names(host: Host, has_bpf: bool, has_nvml: bool, wanted: str) -> None:
    host.has_bpf, host.has_nvml = has_bpf, has_nvml
    named, _ = choose_source(wanted, None if has_bpf else REFUSED, None if has_nvml else "no driver")
    try:
        taken = sensors_of(f"gpu: {{source: {wanted}}}").source
    except HostUnsupported:
        taken = None
    assert taken is named


# ---- between two reads ----


class Peeked(FakeProbe):
    """A probe whose edges may be looked at before they are read."""

    def peek_edges(self) -> list[Edge]:
        return list(self.edges)

    def set_uuids(self, named: dict[bytes, int]) -> None:
        pass


@pytest.fixture
def probe(host: Host, monkeypatch: pytest.MonkeyPatch) -> Peeked:
    """With one context, that worked for the first 10 ms and is idle."""
    found = Peeked()
    monkeypatch.setattr(sensors_module, "GpuTimeProbe", lambda _loader: found)
    found.create(0, 11, 100)
    found.launch(0, 0)
    found.sync(0, 10 * MS)
    return found


@pytest.fixture
def sensors(probe: Peeked) -> Sensors:
    found = sensors_of()
    found.read(10 * MS)
    return found


@pytest.mark.parametrize("kind", [abi.EdgeKind.PROC_NEW, abi.EdgeKind.PROC_EXIT])
def test_a_process_that_comes_or_goes_is_urgent(sensors: Sensors, probe: Peeked, kind: abi.EdgeKind) -> None:
    assert sensors.peek() == (False, {})
    probe._emit(kind, 0, 20 * MS)
    assert sensors.peek() == (True, {})


@pytest.mark.parametrize(("pause_ns", "is_urgent"), [(MS, False), (abi.COMEBACK_NS + 1, True)])
def test_who_comes_back_to_a_gpu_is_urgent_and_who_goes_on_is_not(
    sensors: Sensors, probe: Peeked, pause_ns: int, is_urgent: bool
) -> None:
    probe.launch(0, 10 * MS + pause_ns)
    assert sensors.peek() == (is_urgent, {})
    probe.sync(0, 11 * MS + pause_ns)
    sensors.read(11 * MS + pause_ns)
    assert sensors.peek() == (False, {}), "it has been read"


def test_a_gpu_that_fell_idle_is_named_with_the_time_and_is_not_urgent(
    sensors: Sensors, probe: Peeked
) -> None:
    probe._emit(abi.EdgeKind.GPU_IDLE, 0, 20 * MS)
    probe._emit(abi.EdgeKind.GPU_IDLE, 0, 30 * MS)
    assert sensors.peek() == (False, {0: 30 * MS})


def test_the_silent_work_of_a_gpu_is_ended_and_nobody_elses(sensors: Sensors, probe: Peeked) -> None:
    late_ns = 5_000 * MS
    for slot, (pid, gpu, launched_ns) in enumerate([(21, 0, 20 * MS), (22, 0, late_ns), (23, 1, 20 * MS)], 1):
        probe.create(slot, pid, 100, gpu=gpu)
        probe.launch(slot, launched_ns)
    generation = probe.contexts_by_slot[1].generation
    assert sensors.silent_contexts(0, 2_000 * MS) == []
    assert sensors.silent_contexts(0, late_ns) == [(1, generation)], "one has no work, one was just heard of"
    assert sensors.doubt(0, late_ns) == 1
    assert probe.drains_ended == [(1, generation, 0)]
    assert sensors.silent_contexts(0, late_ns) == []


def test_silent_work_counts_that_only_the_account_takes_to_be_open(sensors: Sensors, probe: Peeked) -> None:
    """The drain of a hold was over as it was estimated, and after the hold nothing more was heard."""
    late_ns = 5_000 * MS
    probe.create(1, 21, 100, gpu=0)
    probe.launch(1, 10 * MS)
    probe.sync(1, 19 * MS)
    probe.launch(1, 20 * MS)
    sensors.read(20 * MS)
    sensors.hold([100], 21 * MS)
    probe.end_drain(1, probe.contexts_by_slot[1].generation, 0)
    sensors.thaw([100], 400 * MS)
    sensors.read(500 * MS)
    key = (1, probe.contexts_by_slot[1].generation)
    assert not probe.contexts_by_slot[1].busy[abi.COMPUTE].streams
    assert sensors.silent_contexts(0, 1_000 * MS) == [], "not yet"
    assert sensors.silent_contexts(0, late_ns) == [key]
    assert sensors.doubt(0, 1_000 * MS) == 1, "but nothing is open there, so the account is wrong"
    assert sensors.silent_contexts(0, late_ns) == []


def test_without_the_account_nothing_is_peeked_at_and_nobody_named(host: Host) -> None:
    host.has_bpf = False
    sampled = sensors_of()
    sampled.look_for_mps()
    assert sampled.peek() == (False, {})
    assert (sampled.silent_contexts(0, 10), sampled.doubt(0, 10), sampled.take_loads(0)) == ([], 0, ())


def test_the_account_is_told_when_a_cgroup_is_somebody_elses_or_nobodys(probe: Peeked) -> None:
    """Once: to look at all of them at each tick costs what it says there."""
    sensors = sensors_of()
    assert sensors.account is not None
    contexts = sensors.account._contexts
    sensors._whose._set({100: "chat", 1: "chat"}, {})
    probe.contexts_by_slot[0].charged_id = 1
    assert {row.cgroup_id for row in sensors.read(10 * MS)} == {100}
    assert not contexts.is_stale
    sensors._whose._remove(100)
    assert {row.cgroup_id for row in sensors.read(20 * MS)} == {1}
    assert not contexts.is_stale


def test_the_account_begins_with_the_slices_that_are_configured(probe: Peeked) -> None:
    found = sensors_of("gpu: {timeslice_us: 1000}")
    probe.create(1, 12, 100)
    found.read(10 * MS)
    assert found.account is not None
    assert found.account._engines[0].replay.slice_ns == 1 * MS
    assert probe.limits.turn_ns == 1 * MS + 180_000, "by which BPF counts queue delays"


# ---- whose calls are seen ----


class Attaching(Peeked):
    """Its answers come when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.requested: list[str] = []
        self.attached: list[Library] = []
        self.attacher_pid = os.getpid()

    def request_library(self, path: str, _name: str, _pid: int | None) -> None:
        self.requested.append(path)

    def take_attached(self) -> list[Library]:
        attached, self.attached = self.attached, []
        return attached


def test_a_process_is_watched_since_the_last_of_its_libraries_has_probes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Attaching()
    monkeypatch.setattr(sensors_module, "GpuTimeProbe", lambda _loader: probe)
    mapped: dict[int, tuple[str, ...] | None] = {1: (), 2: ("/a",), 3: ("/a", "/b"), 4: ("/gone",), 5: None}
    files = {"/a": LibraryFile("/a", 8, 1), "/b": LibraryFile("/b", 8, 2), "/gone": None}
    monkeypatch.setattr(libraries_module, "mapped_libraries", mapped.get)
    monkeypatch.setattr(libraries_module, "see_mapped", lambda path, _pid: files[path])
    sensors = sensors_of("gpu: {libcuda: []}")
    assert sensors.libraries.watched_since_ns(1, 50) == 0, "it maps none"
    assert not sensors.libraries.is_attaching, "nothing was asked for"
    assert sensors.libraries.watched_since_ns(2, 50) == 50, "not yet"
    sensors.look_for_libraries(None, 50)
    assert sensors.libraries.is_attaching
    assert sensors.libraries.watched_since_ns(2, 60) == 60
    assert probe.requested == ["/a"], "asked for once"
    probe.attached = [Library("/a", 8, 1, probes=3)]
    sensors.look_for_libraries(None, 70)
    probe.attached = [Library("/a", 8, 1, probes=3)]
    sensors.look_for_libraries(None, 80)
    assert sensors.libraries.watched_since_ns(2, 90) == 70
    assert not sensors.libraries.is_attaching
    assert sensors.libraries.watched_since_ns(3, 90) == 90, "one of the two lacks them"
    assert sensors.libraries.is_attaching
    probe.attached = [Library("/b", error="exports nothing", is_libcuda=False)]
    sensors.look_for_libraries(None, 100)
    assert sensors.libraries.watched_since_ns(3, 110) == 110, "and never gets them, but is only called so"
    assert not sensors.libraries.is_attaching, "nobody waits for what has failed"
    assert [sensors.libraries.watched_since_ns(pid, 90) for pid in (4, 5)] == [None, None]


def test_whose_libcuda_could_not_be_probed_is_known_and_it_is_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probe = Attaching()
    monkeypatch.setattr(sensors_module, "GpuTimeProbe", lambda _loader: probe)
    monkeypatch.setattr(libraries_module, "mapped_libraries", lambda _pid: ("/a",))
    monkeypatch.setattr(libraries_module, "see_mapped", lambda path, _pid: LibraryFile(path, 8, 1))
    sensors = sensors_of("gpu: {libcuda: []}")
    assert sensors.libraries.watched_since_ns(2, 0) == 0
    for now_ns in (MS, 2000 * MS):
        probe.attached = [Library("/a", error="out of memory")]
        sensors.look_for_libraries(None, now_ns)
        assert sensors.libraries.watched_since_ns(2, now_ns + 1) == NEVER_NS
        assert sensors.libraries.unprobed == 1
        sensors.libraries.watched_since_ns(2, now_ns + 1500 * MS)
    assert probe.requested == ["/a", "/a"], "after a second; the second time after two"
    assert len([text for text in caplog.messages if "out of memory" in text]) == 1, "said once"
    sensors.libraries.watched_since_ns(2, 4100 * MS)
    probe.attached = [Library("/a", 8, 1, probes=3)]
    sensors.look_for_libraries(None, 5000 * MS)
    assert sensors.libraries.watched_since_ns(2, 6000 * MS) == 5000 * MS
    assert sensors.libraries.unprobed == 0
