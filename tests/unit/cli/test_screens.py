# SPDX-License-Identifier: Apache-2.0
"""What a person sees: at most 80 columns, numbers with units, and n/a for what is not known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairsched.base.text import counted, percent
from fairsched.cli import doctor, explain, status, text
from fairsched.cli.text import cut, duration, milliseconds, reason_text, short_size, short_uuid
from fairsched.config import Config
from fairsched.host.checks import checks
from fairsched.host.choose import choose
from fairsched.model import MisbehaviourKind, Reason, ReasonCode, Source
from fairsched.protocol.status import (
    DecisionRecord,
    GateState,
    GateStatus,
    MisbehaviourStatus,
    SliStatus,
    StatusReport,
    TenantState,
    TenantStatus,
    TokenRate,
    VramStatus,
)
from tests.unit.host.test_host import capable_host
from tests.unit.protocol import fakes
from tests.unit.protocol.fakes import hold, thaw


def narrow(lines: Sequence[str]) -> str:
    """The screen as text, once every line is known to fit."""
    for line in lines:
        assert all(len(part) <= 80 for part in line.split("\n")), line
    return "\n".join(lines)


def test_the_status_screen() -> None:
    screen = narrow(status.render(fakes.status()))
    assert screen == "\n".join(
        [
            "fairsched 0.1.0, mode enforce, source ebpf, tick 100 ms, up 2 h 13 min",
            "largest unfairness in the last 1 s: 1.2 points of a GPU; account +-4 a minute",
            "GPU 0 GPU-5f2c1a90 NVIDIA L40S        busy  99.4 %  18.0 of 45.0 GiB",
            "",
            "TENANT             STATE   WEIGHT ENTITLED   USED     LAG   QUEUE   HELD  ERR",
            "                                         %      %      ms  p50 ms   ms/s  +-%",
            "batch              held         1     20.0   31.0     -62     n/a    118   16",
            "  held 12 ms ago: it is ahead of its share: used 31.0%, entitled 25.0% of",
            "    GPU-5f2c1a90, lag -62 ms (limit -10 ms), 8.0 ms still queued count as used",
            "chat               run         4*     80.0   79.2    +8.2     1.2      0   16",
            "a-tenant-…-a-child away         1      n/a    n/a     n/a     n/a    n/a none",
            "warning: 3 events were lost because a BPF map was full; the account of new",
            "         processes may be too low",
        ]
    )


def test_the_gate_has_a_line_where_somebody_asks_for_it() -> None:
    def line(gate: GateStatus) -> str:
        screen = narrow(status.render(replace(fakes.status(), gate=gate)))
        return " ".join(part.strip() for part in screen.split("\nGPU 0")[0].split("\n")[2:])

    assert line(fakes.gate()) == (
        "device gate: on, 3 cgroups with a rule, in /gpu.slice; opens refused: no tenant 4, batch 12"
    )
    waiting = fakes.gate(state=GateState.WAITING, reason="being compiled", attached=(), denied={})
    assert line(waiting) == "device gate: waiting (being compiled)"
    assert line(fakes.gate(state=GateState.OFF, reason="nothing in the configuration asks for it")) == ""


def test_the_service_levels_have_a_line_where_somebody_measures_them() -> None:
    def line(slis: SliStatus) -> str:
        screen = narrow(status.render(replace(fakes.status(), slis=slis)))
        return " ".join(part.strip() for part in screen.split("\nGPU 0")[0].split("\n")[2:])

    fair = SliStatus(3.25, 0.0123, 0.021, is_fair=True, window_s=60.0)
    assert line(fair) == "last 60 s: queue delay p99 3.2 ms, SM stdev 1.2 %, token/s CV 2.1 %: fair"
    assert line(replace(fair, token_rate_cv_ratio=0.71, is_fair=False)).endswith("token/s CV 71.0 %: unfair")
    unknown = SliStatus(token_rate_reason="tokens of different models are not alike", window_s=60.0)
    assert line(unknown) == "last 60 s: queue delay p99 n/a, SM stdev n/a, token/s CV n/a"
    counted = replace(fakes.status().tenants[0], tokens=TokenRate())
    told = replace(fakes.status(), slis=unknown, tenants=(counted,))
    assert "token/s CV n/a: tokens of different models" in " ".join(narrow(status.render(told)).split())


def test_tokens_are_shown_where_their_counters_are_known() -> None:
    def lines(rate: TokenRate) -> list[str]:
        tenant = TenantStatus(name="chat", state=TenantState.RUN, weight=1, tokens=rate)
        screen = narrow(status.render(replace(fakes.status(), tenants=(tenant,), warnings=())))
        return screen.split("\n")[7:]

    assert lines(TokenRate(512.34, 0.0123)) == ["  512.3 token/s, CV in time 1.2 %"]
    assert lines(TokenRate(512.34)) == ["  512.3 token/s"]
    assert lines(TokenRate()) == []
    page = "http://chat.example:8000/a-path-that-is-quite-long/metrics"
    assert lines(TokenRate(failures=7, note=f"no tokens from {page}: it answers 503")) == [
        f"  ! no tokens from {page}:",
        "    it answers 503 (7 times so far)",
    ]


def test_the_policy_that_a_share_comes_from_is_named() -> None:
    tenant = TenantStatus(name="ml/a", state=TenantState.RUN, weight=4, policy="policy research, pods[0]")
    screen = status.render(replace(fakes.status(), tenants=(tenant,)))
    assert "  by policy research, pods[0]" in screen
    told = explain.render("ml/a", [], 0, now=tenant)
    assert "weight 4, by policy research, pods[0]" in told


def test_what_is_not_known_is_never_shown_as_zero() -> None:
    tenant = TenantStatus(name="chat", state=TenantState.IDLE, weight=1)
    report = replace(fakes.status(), source=None, gpus=(), tenants=(tenant,), fairness_error_ratio=None)
    screen = narrow(status.render(report))
    assert "source none" in screen
    assert "no GPU known" in screen
    assert re.search(r"chat .* n/a +n/a +n/a +n/a +n/a +none", screen)


def test_an_empty_report_is_a_screen_too() -> None:
    report = replace(fakes.status(), tenants=(), warnings=())
    assert "no tenants in the configuration" in narrow(status.render(report))


def test_why_the_mode_or_the_source_is_another_one_is_said() -> None:
    report = replace(
        fakes.status(),
        mode="observe",
        mode_reason="NVML samples are too coarse to hold anybody by",
        source=Source.NVML,
        source_reason="bcc is not installed",
        config_error="/etc/fairsched/config.yaml:3: tick: unknown key, and a very long explanation of it",
    )
    screen = narrow(status.render(report))
    assert "mode: NVML samples" in screen
    assert "source: bcc is not" in screen
    assert "reload failed" in screen


def test_what_is_a_warning_is_not_said_twice() -> None:
    report = replace(
        fakes.status(),
        config_error="tick: unknown key",
        source=None,
        source_reason="the probes were lost",
        warnings=("not in force: tick: unknown key", "GPU time is not accounted: the probes were lost"),
    )
    screen = narrow(status.render(report))
    assert screen.count("tick: unknown key") == 1
    assert screen.count("the probes were lost") == 1


def extreme(report: StatusReport) -> StatusReport:
    tenants = [
        replace(
            tenant, name="t" * 70, weight=1e6, lag_ms=-400.0, queue_delay_p50_ms=99999.0, held_ms_per_s=1000.0
        )
        for tenant in report.tenants
    ]
    gpus = [
        replace(gpu, name="N" * 60, memory_total_bytes=10**13, unmanaged_ratio=1.0) for gpu in report.gpus
    ]
    return replace(report, tenants=tuple(tenants), gpus=tuple(gpus), mode_reason="x " * 100)


def test_extremes_fit_too() -> None:
    narrow(status.render(extreme(fakes.status())))


def test_status_shows_the_names_that_people_know_where_there_is_room() -> None:
    report = fakes.status()
    names = tuple(f"docker chat-{number}" for number in range(6))
    report = replace(report, tenants=(replace(report.tenants[0], known_as=names),))
    assert "  docker chat-0, docker chat-1, docker chat-2, docker chat-3 and 2 more\n" in narrow(
        status.render(report)
    )
    assert "docker" not in narrow(status.render(report, status.Detail.HELD))


def test_explain_tells_each_hold_and_its_end() -> None:
    lines = explain.render("batch", [hold(), thaw()], 2_000_000_000)
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", narrow(lines))
    assert text == "\n".join(
        [
            "batch was held once in the last minute, 40 ms in all (0.67 ms of each second),",
            "  40 ms at the longest.",
            "HH:MM:SS.125  held 40 ms: it is ahead of its share: used 31.0%, entitled 25.0%",
            "              of GPU-5f2c1a90, lag -62 ms (limit -10 ms), 8.0 ms still queued",
            "              count as used; thawed: the others caught up: lag -2.0 ms",
        ]
    )


def test_a_daemon_that_is_young_has_looked_for_less_than_a_minute() -> None:
    (first, *_) = explain.render("batch", [hold(), thaw()], 2_000_000_000, uptime_s=4.0)
    assert "40 ms in all (10 ms of each second)" in first


def test_explain_of_a_quiet_minute() -> None:
    assert explain.render("chat", [], 0) == ["chat was not held in the last minute."]


def test_a_hold_that_lasts_is_told_so_far() -> None:
    text = narrow(explain.render("batch", [hold(1_000_000_000)], 1_120_000_000))
    assert "held, for 120 ms so far" in text


def test_a_hold_that_may_last_longer_than_its_class_promises_says_why() -> None:
    long = hold()
    long = replace(long, reason=replace(long.reason, long_hold_ns=2_000_000_000))
    text = " ".join(narrow(explain.render("batch", [long, thaw()], 2_000_000_000)).split())
    assert "held 40 ms (2000 ms at most: it owes more than short holds repay): it is ahead" in text


def test_a_thaw_whose_hold_is_older_than_the_records_still_counts() -> None:
    text = narrow(explain.render("batch", [thaw()], 2_000_000_000))
    assert "thawed after 40 ms" in text
    assert "40 ms in all" in text


def test_a_dry_run_says_would() -> None:
    text = narrow(explain.render("batch", [hold(is_dry_run=True)], 1_120_000_000))
    assert "batch would have been held once in the last minute, 120 ms in all" in text
    assert "would be held, for 120 ms so far" in text
    over = [hold(is_dry_run=True), replace(thaw(), is_dry_run=True)]
    told = " ".join(narrow(explain.render("batch", over, 2_000_000_000)).split())
    assert "would have been held 40 ms: it is ahead" in told
    assert "; would have been thawed: " in told


def test_what_would_have_been_held_is_told_apart_from_what_was() -> None:
    records = [*many(), *(replace(one, t_ns=one.t_ns + 5 * 10**8, is_dry_run=True) for one in many())]
    lines = explain.render("batch", sorted(records, key=lambda one: one.t_ns), 60 * 10**9)
    told = " ".join(narrow(lines).split())
    for verb in ("was", "would have been"):
        assert f"batch {verb} held 50 times in the last minute, 2000 ms in all (33 ms of each second)" in told
    assert " held 50 times: it is ahead" in told and "would have been held 50 times: it is ahead" in told
    assert " thawed 50 times: " in told and "would have been thawed 50 times: " in told


def test_no_hold_is_told_beyond_the_record_that_follows_it_or_the_minute() -> None:
    """Whatever is missing from the records, and if a daemon wished for the same hold each second."""
    wishes = [hold(n * 10**9, is_dry_run=True) for n in range(60)]
    old = replace(thaw(61 * 10**9), held_ns=5 * 10**9)
    failed = replace(thaw(11 * 10**9), error="no", held_ns=None)
    again = replace(thaw(12 * 10**9), held_ns=2 * 10**9)
    for records, now_s, total in (
        (wishes, 60, "60000 ms in all (1000 ms of each second)"),
        ([old], 120, "1000 ms in all (17 ms of each second)"),
        ([hold(10 * 10**9), failed, again], 60, "2000 ms in all (33 ms of each second)"),
    ):
        assert total in " ".join(narrow(explain.render("batch", records, now_s * 10**9)).split())


def test_a_hold_that_failed_is_no_held_time() -> None:
    failed = hold(error="cgroup.freeze: Permission denied")
    text = narrow(explain.render("batch", [failed], 9_000_000_000))
    assert "could not be held (cgroup.freeze: Permission denied)" in text
    assert " 0 ms in all" in text


def many() -> list[DecisionRecord]:
    return [record for n in range(50) for record in (hold(n * 10**9), thaw(n * 10**9 + 40_000_000))]


def test_a_busy_minute_is_summed_up_first() -> None:
    lines = explain.render("batch", many(), 60 * 10**9)
    assert narrow(lines).startswith(
        "batch was held 50 times in the last minute, 2000 ms in all (33 ms of each"
    )


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_reason_has_words(code: ReasonCode) -> None:
    assert reason_text(Reason(code))


def test_doctor_on_a_capable_and_on_a_bare_host() -> None:
    good = capable_host()
    screen = narrow([line for line, _ in doctor.render(checks(good, Config()), choose(good, Config()))])
    assert "account: ebpf (the most exact account)" in screen
    assert screen.endswith("fairsched can run on this host")
    assert "driver 535.54, 1 GPU\n" in screen
    bare = capable_host(
        is_root=False,
        capabilities=frozenset(),
        cgroup_mount=None,
        bcc_version=None,
        driver_version=None,
        libcuda=(),
    )
    screen = narrow([line for line, _ in doctor.render(checks(bare, Config()), choose(bare, Config()))])
    assert "remedy: run it with sudo" in screen
    assert "fairsched cannot run here: cgroup v2 is not mounted" in screen


def test_the_doctor_of_who_is_not_root_says_what_it_could_not_look_at() -> None:
    facts = capable_host(is_root=False)
    screen = narrow([line for line, _ in doctor.render(checks(facts, Config()), choose(facts, Config()))])
    assert "not looked at: whether BPF programs load" in " ".join(screen.split())
    assert "cannot run" not in screen
    assert screen.endswith("for the rest: sudo\n  fairsched doctor")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0"),
        (0.42, "0.42"),
        (4.25, "4.2"),
        (42.4, "42"),
        (4200.0, "4200"),
        (-0.5, "-0.50"),
    ],
)
def test_milliseconds_keep_what_matters(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_small_words() -> None:
    assert [duration(s) for s in (4, 200, 7980, 180000)] == ["4 s", "3 min 20 s", "2 h 13 min", "2 d 2 h"]
    assert percent(0.315) == "31.5"
    assert short_uuid("GPU-5f2c1a90-1111") == "GPU-5f2c1a90"
    assert cut("abcdef", 4) == "abc…"
    sizes = (None, 0, 1, 300 << 20, 18 << 30)
    assert [short_size(size) for size in sizes] == ["n/a", "0", "1M", "0.3G", "18.0G"]
    assert [counted(n, "GPU") for n in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert counted(2, "process", "processes") == "2 processes"


def endless(action: str = "warn") -> MisbehaviourStatus:
    detail = (
        "4 contexts have completed none of their work for 4.2 s while the GPU worked 2.5 s for it (pid 27004)"
    )
    return MisbehaviourStatus(MisbehaviourKind.ENDLESS, 1_700_000_000.137 - 12, fakes.GPU, detail, action)


def test_misbehaviour_is_the_first_thing_said_of_a_tenant() -> None:
    one = endless()
    tenant = TenantStatus(
        name="bad", state=TenantState.RUN, weight=1, misbehaviour=one, misbehaviours=(one,), note="a note"
    )
    screen = narrow(status.render(replace(fakes.status(), tenants=(tenant,))))
    assert (
        "  ! endless GPU work on GPU-5f2c1a90 for 12 s, observed, not held: 4 contexts\n"
        "    have completed none of their work for 4.2 s while the GPU worked 2.5 s for\n"
        "    it (pid 27004)\n"
        "  a note"
    ) in screen


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("terminate", "being terminated: 4"),
        ("would_terminate", "would be terminated in mode enforce: 4"),
        ("of a newer daemon", "of a newer daemon: 4"),
    ],
)
def test_explain_says_what_is_done_about_it(action: str, words: str) -> None:
    lines = explain.render("bad", [], 0, (endless(action),), 1_700_000_000.137)
    assert "bad was not held in the last minute." in lines
    assert f"! endless GPU work on GPU-5f2c1a90 for 12 s, {words}" in re.sub(r"\s+", " ", narrow(lines))


def test_who_leaves_its_cgroup_is_said_to_be_held_when_it_is_there() -> None:
    left = MisbehaviourStatus(MisbehaviourKind.MOVING, 1_700_000_000.137 - 4, fakes.GPU, "pid 7 left", "warn")
    said = text.misbehaviour_text(left, 1_700_000_000.137)
    assert (
        said == "leaving its cgroup, with GPU work on GPU-5f2c1a90 for 4 s, held when it is there: pid 7 left"
    )
    assert ", being terminated: " in text.misbehaviour_text(
        replace(left, action="terminate"), 1_700_000_000.137
    )


def vram(**more: object) -> VramStatus:
    return replace(VramStatus(fakes.GPU, 8 << 30, 3 << 30, "ioctls", True), **more)


def test_memory_is_shown_against_its_limit_and_being_beyond_it_stands_out() -> None:
    over = vram(
        used_bytes=9 << 30, over_since_s=1_700_000_000.137 - 12, action="terminate", pid=77, refused=1
    )
    tenant = TenantStatus("a", TenantState.RUN, 1, vram_limit_bytes=8 << 30, vram=(vram(refused=2), over))
    screen = narrow(status.render(replace(fakes.status(), tenants=(tenant,))))
    assert (
        "  GPU memory on GPU-5f2c1a90: 3.0 of 8.0 GiB, 2 allocations refused\n"
        "  ! beyond its GPU memory on GPU-5f2c1a90 for 12 s, the process that has most is\n"
        "    being terminated (pid 77): 9.0 of 8.0 GiB, 1 allocation refused"
    ) in screen
    lines = explain.render("a", [], 0, (), 1_700_000_000.137, (over,))
    assert "! beyond its GPU memory on GPU-5f2c1a90 for 12 s" in narrow(lines)


def test_a_hold_for_memory_says_how_much() -> None:
    reason = Reason(ReasonCode.OVER_VRAM, gpu=fakes.GPU, vram_bytes=9 << 30, vram_limit_bytes=8 << 30)
    assert reason_text(reason) == ("it has more GPU memory than its limit: 9.0 of 8.0 GiB on GPU-5f2c1a90")
