# SPDX-License-Identifier: Apache-2.0
"""What status says besides numbers: the reasons it gives are those of this daemon, now."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.act.tally import Tally
from fairsched.bpf import abi
from fairsched.config import Config
from fairsched.daemon import report
from fairsched.daemon import tenants as tenants_module
from fairsched.daemon.cost import OwnCost
from fairsched.daemon.ledger import Ledger
from fairsched.daemon.parts import Vitals
from fairsched.driver.books import DriverUse
from fairsched.gpu.nvml import Gpu, GpuUse
from fairsched.host.mode import Mode
from fairsched.model import (
    ActionKind,
    Confidence,
    Hold,
    Reason,
    ReasonCode,
    Snapshot,
    Source,
    TenantSpec,
    Unseen,
    Use,
)
from fairsched.observe.owners import Owners
from fairsched.observe.tree import TenantView
from fairsched.protocol.delays import AMinuteAgo
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import DecisionRecord, TenantGpuStatus, TenantState, TenantStatus

S = 1_000_000_000
OVER = ReasonCode.OVER_ENTITLEMENT


def driver(*uses: DriverUse, **counts: int) -> SimpleNamespace:
    return SimpleNamespace(uses=lambda: uses, calls=lambda: {}, counts=lambda: counts, lost=None)


def owners(**over: tuple[abi.Table, ...]) -> Owners:
    found = Owners()
    found.over = over
    return found


def sensors(**values: Any) -> Any:
    default: dict[str, Any] = {
        "source": Source.EBPF,
        "reason": None,
        "probe": None,
        "account": None,
        "traced": None,
        "trace_told": lambda _slot: None,
        "nvml": None,
        "gpu_watch": None,
        "driver": driver(),
        "a_minute_ago": AMinuteAgo(),
        "libraries": SimpleNamespace(unprobed=0, over_budget=frozenset()),
        "owners": owners(),
    }
    return SimpleNamespace(**{**default, **values})


def probe(**counts: int) -> SimpleNamespace:
    return SimpleNamespace(libraries=["libcuda.so.1"], counts=lambda: counts)


def warnings(mode: str = "enforce", overrides_warning: str | None = None, **values: Any) -> list[str]:
    vitals = Vitals(0, 0, mode, None, 100, 0, OwnCost(0))
    settings = SimpleNamespace(
        error=None, overrides_warning=overrides_warning, pods_warning=None, config=Config()
    )
    return list(report._warnings(vitals, cast(Any, settings), sensors(**values)))


def test_systemd_is_told_the_mode_why_it_is_another_and_that_the_file_is() -> None:
    assert report.status_line(Mode("enforce"), 3, None) == "enforce, 3 tenants"
    because = Mode("observe", "nobody can be held: no freezer")
    assert report.status_line(because, 3, None) == "observe (nobody can be held: no freezer), 3 tenants"
    told = report.status_line(Mode("enforce"), 3, "f: unknown key")
    assert told == "enforce, 3 tenants; configuration refused: f: unknown key"


def test_a_tenant_is_known_by_the_names_of_its_cgroups() -> None:
    paths = ("/lxc.payload.web", "/lxc.payload.web/x", "/system.slice/chat.service", "/gpu.slice/chat")
    view = TenantView("t", refs=cast(Any, {n: SimpleNamespace(path=path) for n, path in enumerate(paths)}))
    assert tenants_module._known_as(view) == ("lxc web", "unit chat.service")
    assert tenants_module._known_as(None) == ()


def test_all_is_well_and_nothing_is_said() -> None:
    assert warnings(probe=probe(ctx_full=0)) == []


def test_overrides_that_are_not_in_force_are_warned_of() -> None:
    assert warnings(probe=probe(), overrides_warning="they do not fit") == ["they do not fit"]


@pytest.mark.parametrize("source", [Source.NVML, Source.DCGM])
def test_samples_that_nobody_asked_for_are_warned_of(source: Source) -> None:
    (said,) = warnings(source=source, reason="bcc is not installed")
    assert "right over a minute" in said and "bcc is not installed" in said
    assert warnings(source=Source.EBPF, probe=probe()) == []


def test_an_nvml_that_does_not_answer_is_warned_of() -> None:
    def watch(silent_s: float | None) -> SimpleNamespace:
        return SimpleNamespace(silent_s=lambda: silent_s)

    assert warnings(probe=probe(), gpu_watch=watch(None)) == []
    (said,) = warnings(probe=probe(), gpu_watch=watch(12.4))
    assert said.startswith("NVML has not answered for 12 s")


@pytest.mark.parametrize(
    "what", ["ctx_full", "use_full", "proc_full", "handle_full", "edge_dropped", "clock_range"]
)
def test_what_bpf_could_not_count_is_said(what: str) -> None:
    assert warnings(probe=probe(**{what: 3, "dep_dropped": 5})) == [f"BPF counted {what}: 3"]


def test_who_has_more_cgroups_than_are_looked_at_is_named() -> None:
    (said,) = report._crowd_warnings({"flood"})
    assert said.startswith("tenant flood: has 2048 cgroups or more")


def test_who_has_more_libraries_than_get_probes_is_named() -> None:
    libraries = SimpleNamespace(unprobed=0, over_budget=frozenset({"flood"}))
    (said,) = warnings(probe=probe(), libraries=libraries)
    assert said.startswith("tenant flood: has more than 32 libcuda files")


def test_who_is_over_its_budget_is_named_and_of_what() -> None:
    over = owners(hog=(abi.Table.CONTEXTS, abi.Table.EDGES))
    (said,) = warnings(probe=probe(over_budget=9), owners=over)
    assert said.startswith("hog is over its budget of contexts, edges: work beyond that is not seen")


@pytest.mark.parametrize(
    ("tables", "follows"),
    [
        ((abi.Table.OBJECTS,), "contexts, VRAM and calls beyond that are not seen"),
        ((abi.Table.PIDS, abi.Table.CALLS), "process lists show it"),
        ((abi.Table.ORDINALS,), "which GPUs its older processes mean"),
        ((abi.Table.CLIENTS, abi.Table.EDGES), "work beyond that is not seen"),
    ],
)
def test_what_follows_from_a_budget_is_said(tables: tuple[abi.Table, ...], follows: str) -> None:
    (said,) = warnings(probe=probe(), owners=owners(hog=tables))
    assert follows in said


def test_libraries_without_probes_are_said() -> None:
    (said,) = warnings(probe=probe(), libraries=SimpleNamespace(unprobed=2, over_budget=frozenset()))
    assert said.startswith("2 libcuda could not be probed")


@pytest.mark.parametrize("what", ["call_lost", "skipped"])
def test_what_bpf_could_not_follow_of_the_driver_is_said_where_it_makes_numbers_wrong(what: str) -> None:
    (said,) = warnings(driver=driver(**{what: 2, "bad_read": 9, "objects_made": 100}))
    assert said == f"calls to the driver: BPF counted {what}: 2; contexts and VRAM may be wrong"


def test_a_driver_that_is_not_seen_any_more_is_said() -> None:
    lost = driver()
    lost.lost = "its module was loaded anew"
    assert warnings(driver=lost) == ["contexts, VRAM and calls are not seen: its module was loaded anew"]


def test_contexts_and_memory_of_a_tenant_are_those_of_all_its_processes() -> None:
    tenants = {7: "chat", 8: "chat", 9: "batch"}
    uses = (
        DriverUse(7, 1, 0, 1, 100),
        DriverUse(7, 2, 0, 2, 10),
        DriverUse(8, 3, 1, 1, 5),
        DriverUse(9, 4, 0, 0, 1),
        DriverUse(9, 4, None, 3, 3),  # on a GPU we do not know
        DriverUse(66, 5, 0, 1, 1),  # nobody's
    )
    watched = sensors(driver=driver(*uses), gpus=(Gpu("GPU-a"), Gpu("GPU-b")))
    found = tenants_module._Driver.of(watched, cast(Any, SimpleNamespace(tenant_of=tenants.get)))
    assert found.contexts == {"chat": {"GPU-a": 3, "GPU-b": 1}, "batch": {"GPU-a": 0}}
    assert found.vram_bytes == {"chat": {"GPU-a": 110, "GPU-b": 5}, "batch": {"GPU-a": 1}}


def test_of_gpus_the_loop_asks_who_asks_nvml_beside_it() -> None:
    """NVML itself is not there: whoever asks it fails."""
    watch = SimpleNamespace(use=lambda slot: GpuUse(memory_used_bytes=7 + slot, is_up=True))
    watched = sensors(gpus=(Gpu("GPU-a"), Gpu("GPU-b")), nvml=object(), gpu_watch=watch)
    vitals = Vitals(0, 0, "enforce", None, 100, 0, OwnCost(0))
    settings = SimpleNamespace(config=SimpleNamespace(window_s=10))
    found = report._gpus(vitals, cast(Any, settings), watched, Ledger(), (), {})
    assert [(one.memory_used_bytes, one.is_up) for one in found] == [(7, True), (8, True)]


def test_who_has_more_than_its_calls_account_for_is_named() -> None:
    assert list(report._unseen_warnings(Unseen({("hog", "GPU-b"): 1.7, ("bad", "GPU-a"): 0.314}))) == [
        "bad: while it runs, NVML sees it have 31% of GPU-a beyond what its calls account for;"
        " it is charged that, and held for it",
        "hog: while it runs, NVML sees it have 100% of GPU-b beyond what its calls account for;"
        " it is charged that, and held for it",
    ]


def record(tenant: str, t_ns: int, held_ns: int | None) -> DecisionRecord:
    action = ActionKind.HOLD if held_ns is None else ActionKind.THAW
    return DecisionRecord(
        t_ns=t_ns,
        wall_time_s=0.0,
        action=action,
        tenant=tenant,
        reason=Reason(ReasonCode.DEADLINE),
        held_ns=held_ns,
        deadline_ns=None,
        is_dry_run=False,
        error=None,
    )


def test_what_is_on_record_is_told_apart_by_tenant() -> None:
    ledger = Ledger()
    ledger.total_ns = {("chat", "GPU-a"): 1, ("chat", "GPU-b"): 2, ("train", "GPU-a"): 3}
    records = [
        record("chat", 1 * S, S),
        record("chat", 11 * S, 3 * S),
        record("train", 12 * S, None),
        record("chat", 13 * S, S),
        record("chat", 14 * S, None),
    ]
    past = tenants_module._Past.of(ledger, records, 20 * S)
    assert past.total_ns == {"chat": {"GPU-a": 1, "GPU-b": 2}, "train": {"GPU-a": 3}}
    assert past.last == {"chat": records[4], "train": records[2]}
    assert past.recently_held_ns == {"chat": 2 * S}, "of the second only what is within ten seconds"


def test_what_a_dry_run_would_hold_is_in_no_time_held() -> None:
    pretended = [replace(record("chat", 15 * S, held_ns), is_dry_run=True) for held_ns in (None, S)]
    past = tenants_module._Past.of(Ledger(), pretended, 20 * S)
    assert (past.recently_held_ns, past.last) == ({}, {"chat": pretended[1]})
    dry = Tally({"chat": Hold("chat", 18 * S, 0, is_ours=True)}, held_by_reason_ns={"chat": {OVER: S}})
    told = {name: tenants_module._dry_held_s(name, dry, 20 * S) for name in ("chat", "train")}
    assert told == {"chat": 3.0, "train": None}


def test_a_hold_that_goes_on_counts_as_far_as_it_lies_in_the_last_ten_seconds() -> None:
    holds = {"chat": Hold("chat", 18 * S, 0, is_ours=True), "train": Hold("train", S, 0, is_ours=True)}
    applier = cast(Any, SimpleNamespace(is_dry_run=False, holds=holds))
    past = tenants_module._Past(recently_held_ns={"chat": S})
    shown = {
        name: tenants_module._held_ms_per_s(name, applier, past, 20 * S)
        for name in ("chat", "train", "other")
    }
    assert shown == {"chat": 300, "train": 1000, "other": 0}


def test_the_limit_of_a_hold_is_its_own_while_that_is_longer_than_the_promise() -> None:
    holds = {"deep": Hold("deep", 18 * S, 20 * S, is_ours=True), "vram": Hold("vram", S, S + 1, is_ours=True)}
    applier = cast(Any, SimpleNamespace(holds=holds))
    shown = {
        name: tenants_module._hold_limit_s(name, TenantSpec(name), applier)
        for name in ("deep", "vram", "other")
    }
    assert shown == {"deep": 2.0, "vram": 0.5, "other": 0.5}


def test_the_queue_delays_of_a_tenants_processes_are_added_up() -> None:
    counts = {("chat", 0): [1, 0, 2, 90], ("chat", 1): [1, 1, 1, 10], ("train", 0): [5, 5, 5, 7]}
    asked: list[Any] = []

    def queue_delays(*args: Any) -> dict[tuple[str, int], list[int]]:
        asked.append(args)
        return counts

    watched = sensors(queue_delays=queue_delays, gpus=(Gpu("GPU-a"), Gpu("GPU-b")))
    tree = cast(Any, SimpleNamespace(tenant_of="of", has_cgroup="there", tenants={"chat": 1}))
    found = tenants_module._Delays.of(watched, tree, {"train": TenantSpec("train")}, 0)
    assert asked == [("of", "there", {"chat", "train"})]
    assert found.now["chat"] == {
        "GPU-a": Histogram(0, (1, 0, 2), 90e-9),
        "GPU-b": Histogram(0, (1, 1, 1), 10e-9),
    }
    assert found.median_and_p99_ms("chat") == (2 * 1024 / 1e6, pytest.approx(2.98 * 1024 / 1e6)), (
        "over both GPUs"
    )
    counts["chat", 1] = [2, 1, 1, 11]
    later = tenants_module._Delays.of(watched, tree, {"train": TenantSpec("train")}, S)
    assert later.median_and_p99_ms("chat") == (512 / 1e6, 0.99 * 1024 / 1e6), "quantiles are of late"
    assert later.median_and_p99_ms("train") == (None, None)
    assert later.now["train"] == found.now["train"], "histograms are of all time"


def shared(name: str, **used_of: tuple[float, float | None, bool]) -> TenantStatus:
    gpus = tuple(
        TenantGpuStatus(f"GPU-{gpu}", entitled, used, has_demand=wants)
        for gpu, (used, entitled, wants) in used_of.items()
    )
    return TenantStatus(name, TenantState.RUN, 1, gpus=gpus)


def test_the_index_of_fairness_is_one_when_each_has_its_due_and_one_by_n_when_one_has_it_all() -> None:
    tenants = (
        shared("a", fair=(0.8, 0.8, True), unfair=(1.0, 0.5, True), idle=(0.0, 0.5, True)),
        shared("b", fair=(0.2, 0.2, True), unfair=(0.0, 0.5, True), idle=(0.0, 0.5, True)),
        shared("c", fair=(0.0, None, False), other=(0.3, 0.4, False)),
    )
    found = report._jain_by_gpu(tenants)
    assert found.keys() == {"GPU-fair", "GPU-unfair"}, "of nothing there is no fair part"
    assert found["GPU-fair"] == pytest.approx(1.0)
    assert found["GPU-unfair"] == pytest.approx(0.5)
    monitor = replace(shared("monitor", fair=(0.9, 0.1, True)), state=TenantState.EXEMPT)
    assert report._jain_by_gpu((*tenants, monitor)) == found, "who is never held is not what is judged"


def test_drains_are_those_of_the_last_tick() -> None:
    ledger = Ledger()
    assert tenants_module._uses(ledger) == {}
    use = Use("chat", "GPU-a", 1, True, 12_000_000, Confidence.HIGH)
    ledger.add(Snapshot(now_ns=S, interval_ns=S, uses=(use,)), {})
    assert tenants_module._uses(ledger) == {("chat", "GPU-a"): use}
    ledger.add(Snapshot(now_ns=2 * S, interval_ns=S, uses=()), {})
    assert tenants_module._uses(ledger) == {}


def noted(use: Use, **values: Any) -> str | None:
    default = {"account": SimpleNamespace(intruded=set()), "gpus": (Gpu("GPU-a"), Gpu("GPU-b"))}
    return tenants_module._account_note(use, sensors(**{**default, **values}))


LOW = Use("chat", "GPU-a", 1, True, 0, Confidence.LOW)


@pytest.mark.parametrize("confidence", [Confidence.HIGH, Confidence.SAMPLED, Confidence.NONE])
def test_no_note_is_needed_where_the_account_is_believed(confidence: Confidence) -> None:
    assert noted(LOW._replace(confidence=confidence)) is None


def test_only_who_was_seen_to_launch_without_proof_is_said_to() -> None:
    """One that was never seen to, as a context whose first launch has just begun, is not blamed for it."""
    assert (
        noted(LOW._replace(most_ns=5))
        == "of some of its launches the end is not known, or which GPU they are on: held for a bound"
    )
    said = noted(LOW)
    assert (
        said
        == "what a launch of it takes is not known yet, or which GPU it is on: until then it is left alone"
    )


def test_a_tenant_is_not_blamed_for_what_others_do_to_its_account() -> None:
    """That is among the warnings, with who it is."""
    assert noted(LOW._replace(most_ns=5), owners=owners(chat=(abi.Table.EDGES,))) is None
    assert noted(LOW._replace(most_ns=5), owners=owners(chat=(abi.Table.OBJECTS,))) is not None


def test_where_no_probe_looks_for_launches_nobody_is_said_to_make_none() -> None:
    assert tenants_module._contexts_note(sensors(account=None)) is None
    assert tenants_module._contexts_note(sensors(account=SimpleNamespace())) == tenants_module.CONTEXTS_ONLY
