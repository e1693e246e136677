# SPDX-License-Identifier: Apache-2.0
"""What a person sees: the table, the sentence, the moving view, the picture."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from fairsched.base.process import ProcessId
from fairsched.config import load
from fairsched.demo import picture, report, screen
from fairsched.demo.janitor import name_of, owner_of
from fairsched.demo.result import DaemonFigures, HalfFigures, Result, TenantFigures, Timeline
from fairsched.demo.scene import TENANTS, configuration, entitlements
from fairsched.demo.stage import read_error
from fairsched.errors import FairschedError
from fairsched.model import TenantClass
from fairsched.protocol.status import StatusReport, TenantState, TenantStatus

UNFAIR = (0.163, 0.163, 0.163, 0.511)
FAIR = (0.498, 0.251, 0.127, 0.124)


def half(shares: tuple[float, ...]) -> HalfFigures:
    due = entitlements()
    tenants = {
        tenant.name: TenantFigures(share, share - due[tenant.name], 48 * share, 0.02, 0.004)
        for tenant, share in zip(TENANTS, shares, strict=True)
    }
    worst = max(abs(figures.error_ratio) for figures in tenants.values())
    return HalfFigures(10.0, 0.99, 0.04, worst, tenants)


def result(before: tuple[float, ...] = UNFAIR, after: tuple[float, ...] = FAIR) -> Result:
    names = [tenant.name for tenant in TENANTS]
    shares = {
        name: [early] * 30 + [late] * 30 for name, early, late in zip(names, before, after, strict=True)
    }
    rates = {name: [48 * share for share in shares[name]] for name in names}
    timeline = Timeline([n / 2 for n in range(60)], 15.05, shares, rates)
    daemon = DaemonFigures(0.05, 44_000_000, 35_000_000)
    return Result(15.0, 5.0, entitlements(), half(before), half(after), daemon, (), timeline)


def view(shares: tuple[float, ...], which: int = 1) -> screen.View:
    tenants = tuple(
        TenantStatus(tenant.name, TenantState.RUN, tenant.weight, used_ratio=share)
        for tenant, share in zip(TENANTS, shares, strict=True)
    )
    status = StatusReport("0", 1, 0, 0.0, 9.0, "enforce", 100, 1.0, cpu_ratio=0.05, tenants=tenants)
    return screen.View(which, 7.0, 15.0, status, 0.99, dict.fromkeys(entitlements(), 123.4))


def test_the_result_fits_80_columns_and_24_lines_with_room_for_the_prompt() -> None:
    lines = [*report.table(result()), *report.notes(result())]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20


def test_the_sentence_says_what_was_seen() -> None:
    text = report.sentence(result())
    assert "trainer took 51.1 %" in text
    assert "chat got 16.3 % of its 50.0 %" in text
    assert "within 0.2 points" in text


def test_the_sentence_does_not_praise_what_was_no_better() -> None:
    text = report.sentence(result(after=UNFAIR))
    assert "no better" in text
    assert "within" not in text


def test_a_demo_that_shows_what_it_promises_has_missed_nothing() -> None:
    assert report.missed(result(), load_ratio=3.0) is None


def test_a_demo_that_misses_says_who_and_why() -> None:
    off = dataclasses.replace(result(after=UNFAIR), warnings=("events were lost",))
    why = report.missed(off, load_ratio=3.0)
    assert why is not None
    assert "trainer ended 38.6 points from its due of 12.5 %" in why
    assert "the daemon warns: events were lost" in why
    assert "3.0 processes a CPU" in why
    assert "account" not in why


def test_a_demo_that_misses_names_the_account_that_was_wrong() -> None:
    off = result(after=UNFAIR)
    tenants = dict(off.scheduled.tenants)
    tenants["mail"] = dataclasses.replace(tenants["mail"], account_error_ratio=-0.2)
    off = dataclasses.replace(off, scheduled=dataclasses.replace(off.scheduled, tenants=tenants))
    assert "account of mail was -20.0 % off" in (report.missed(off, load_ratio=0.5) or "")


def test_halves_too_short_to_settle_are_not_judged() -> None:
    assert report.missed(dataclasses.replace(result(after=UNFAIR), settle_s=4.9), load_ratio=0.0) is None


def test_what_is_not_known_is_said_in_the_table() -> None:
    fair = half(FAIR)
    unknown = {
        name: dataclasses.replace(figures, steps_cv_ratio=None, account_error_ratio=None)
        for name, figures in fair.tenants.items()
    }
    short = dataclasses.replace(result(), scheduled=dataclasses.replace(fair, tenants=unknown))
    assert report.table(short)[3].count("n/a") == 2


def test_the_document_is_json_and_holds_every_figure(tmp_path: Path) -> None:
    document = json.loads(json.dumps(report.document(result(), png=tmp_path / "a.png", has_real_gpu=False)))
    assert document["gpu"] == "simulated"
    assert document["scheduled"]["largest_error_ratio"] == pytest.approx(0.002)
    assert [tenant["name"] for tenant in document["tenants"]] == ["chat", "code", "mail", "trainer"]
    assert len(document["timeline"]["share_ratio"]["chat"]) == 60
    assert document["daemon"]["rss_bytes"] == 44_000_000


@pytest.mark.parametrize("has_blocks", [True, False])
@pytest.mark.parametrize("shares", [UNFAIR, FAIR, (0.0, 0.0, 0.0, 1.0)])
def test_the_moving_view_fits_80_by_24(shares: tuple[float, ...], has_blocks: bool) -> None:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        console.print(screen.draw(view(shares), has_blocks=has_blocks))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    assert has_blocks or capture.get().isascii()


def test_a_bar_grows_with_the_share_and_marks_the_due() -> None:
    short, long = (screen.bar(used, 0.5, "#0072B2").plain for used in (0.1, 0.4))
    assert short.count("█") < long.count("█")
    assert short.index("┃") == long.index("┃")


def test_without_a_terminal_there_is_a_line_per_second() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    with screen.choose_screen(console, is_live=True) as shown, console.capture() as capture:
        for moment in range(30):
            shown.show(dataclasses.replace(view(FAIR), elapsed_s=moment / 10))
    lines = capture.get().splitlines()
    assert sum("GPU busy" in line for line in lines) == 3
    assert max(map(len, lines)) <= 80


def test_without_a_wish_to_see_it_nothing_is_shown() -> None:
    console = Console(width=80, file=io.StringIO())
    with screen.choose_screen(console, is_live=False) as shown, console.capture() as capture:
        shown.wait("starting")
        shown.show(view(FAIR))
    assert capture.get() == ""


def test_the_picture_is_written_whole_and_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: sudo make setup")
    path = tmp_path / "demo.png"
    picture.save_picture(result(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: sudo make setup")
    with pytest.raises(FairschedError) as caught:
        picture.save_picture(result(), tmp_path / "missing" / "demo.png")
    assert "--png" in caught.value.remedy
    with pytest.raises(FairschedError):
        picture.check_place(tmp_path / "missing" / "demo.png")


def test_labels_that_would_lie_on_each_other_are_moved_apart() -> None:
    places = picture._apart({"a": 12.0, "b": 12.1, "c": 24.0}, 5.0)
    assert places["b"] - places["a"] >= 5.0
    assert places["c"] == 24.0


def test_the_daemon_takes_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    cgroups = {tenant.name: f"gpu.slice/fairsched-demo-1-2/{tenant.name}" for tenant in TENANTS}
    path.write_text(yaml.safe_dump(configuration(cgroups, "enforce", "/somewhere/libcuda.so.1")))
    config = load(path)
    assert config.mode == "enforce"
    assert [spec.weight for spec in config.tenant_specs().values()] == [4, 2, 1, 1]
    assert config.tenant_specs()["trainer"].tenant_class is TenantClass.BATCH


def test_a_name_says_which_process_it_belongs_to() -> None:
    me = ProcessId.me()
    assert owner_of(name_of(me)) == me
    for name in ("fairsched-demo-", "fairsched-demo-1", "fairsched-demo-x-1", "chat", "fairsched-sim"):
        assert owner_of(name) is None


def test_the_daemons_error_and_remedy_are_handed_on() -> None:
    assert read_error("") == ("", "")
    log = "level=info started\nerror: no BPF\n  remedy: install python3-bpfcc\n"
    assert read_error(log) == ("no BPF", "install python3-bpfcc")
    assert read_error("Traceback\nValueError: odd\n") == ("ValueError: odd", "")
