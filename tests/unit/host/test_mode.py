# SPDX-License-Identifier: Apache-2.0
"""Which mode is in effect, and why; and that doctor says the same as the daemon."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.config import from_bytes
from fairsched.host.brake import brake_lack
from fairsched.host.choose import choose
from fairsched.host.mode import Mode, asked, in_effect
from fairsched.model import Source
from tests.unit.host.test_host import capable_host

CAPABLE: dict[str, Any] = {}
NO_BRAKE: dict[str, Any] = {"has_freezer": False}
ON_SAMPLES: dict[str, Any] = {"bcc_version": None}

LACK = "nobody is held, because mechanisms.guardian is required: no memory"


@pytest.mark.parametrize(
    ("text", "is_dry_run", "source", "lack", "mode", "says"),
    [
        ("mode: enforce", False, Source.EBPF, None, "enforce", None),
        ("mode: enforce", False, Source.NVML, None, "enforce", None),
        ("mode: enforce", False, None, None, "enforce", None),  # probes that are being put back
        ("mode: enforce", True, Source.EBPF, None, "dry_run", "--dry-run"),
        ("mode: observe", True, Source.EBPF, None, "dry_run", "--dry-run"),
        ("mode: dry_run", False, Source.EBPF, LACK, "dry_run", None),
        ("mode: observe", False, Source.EBPF, LACK, "observe", None),
        ("mode: enforce", False, Source.EBPF, LACK, "dry_run", LACK),
        (
            "mode: dry_run\nmechanisms: {freezer: off}",
            False,
            Source.EBPF,
            None,
            "observe",
            "mechanisms.freezer",
        ),
        (
            "mode: enforce\ngpu: {enforce_on: [ebpf]}",
            False,
            Source.NVML,
            LACK,
            "observe",
            "does not name nvml",
        ),
        ("mode: enforce\ngpu: {enforce_on: [ebpf]}", False, Source.EBPF, None, "enforce", None),
    ],
)
def test_the_mode_and_its_reason(
    text: str, is_dry_run: bool, source: Source | None, lack: str | None, mode: str, says: str | None
) -> None:
    config = from_bytes(text.encode(), "f")
    found = in_effect(asked(config, is_dry_run=is_dry_run, no_brake=None), config, source=source, lack=lack)
    assert found.name == mode
    assert found.is_acting is (mode == "enforce")
    assert (says is None) if found.reason is None else says is not None and says in found.reason


def test_who_is_to_guard_holds_does_not_hang_on_the_account_of_the_moment() -> None:
    """The guardian lives on while the probes are put back."""
    config = from_bytes(b"mode: enforce\ngpu: {enforce_on: [ebpf]}", "f")
    assert asked(config, is_dry_run=False, no_brake=None) == Mode("enforce")


def test_without_a_brake_it_observes_and_says_why() -> None:
    config = from_bytes(b"mode: enforce", "f")
    found = asked(config, is_dry_run=False, no_brake="nobody can be held: no freezer")
    assert found == Mode("observe", "nobody can be held: no freezer")
    assert asked(config, is_dry_run=True, no_brake="no freezer").name == "dry_run"
    assert asked(from_bytes(b"mode: observe", "f"), is_dry_run=False, no_brake="no freezer") == Mode(
        "observe"
    )


@pytest.mark.parametrize(
    ("mode", "brake", "is_dry_run", "lack", "is_sharing"),
    [
        ("enforce", "cgpu", False, None, True),
        ("enforce", "cgpu", True, None, False),
        ("observe", "cgpu", False, None, False),
        ("dry_run", "cgpu", False, None, False),
        ("enforce", "sigstop", False, None, False),
        ("enforce", "cgpu", False, LACK, False),
    ],
)
def test_shares_are_written_in_mode_enforce_and_guarded(
    mode: str, brake: str, is_dry_run: bool, lack: str | None, is_sharing: bool
) -> None:
    text = f"mode: {mode}\nmechanisms: {{brake: {brake}}}\ncgpu: {{share_file: '/x/{{container}}'}}"
    config = from_bytes(text.encode(), "f")
    wish = asked(config, is_dry_run=is_dry_run, no_brake="it takes the shares, and nobody is held")
    found = in_effect(wish, config, source=Source.NVML, lack=lack)
    assert (found.is_sharing, found.is_acting) == (is_sharing, False)
    assert wish.is_guarded is (is_sharing or lack is not None)


@pytest.mark.parametrize(
    "changed", [CAPABLE, NO_BRAKE, ON_SAMPLES], ids=["capable", "no_brake", "on_samples"]
)
@pytest.mark.parametrize("mode", ["enforce", "dry_run", "observe"])
@pytest.mark.parametrize(
    "more",
    ["", "gpu: {enforce_on: [ebpf]}", "mechanisms: {brake: cgpu}\ncgpu: {share_file: '/x/{container}'}"],
)
def test_doctor_says_the_mode_and_the_reason_of_the_daemon(
    changed: dict[str, Any], mode: str, more: str
) -> None:
    config, facts = from_bytes(f"mode: {mode}\n{more}".encode(), "f"), capable_host(**changed)
    said = choose(facts, config)
    wish = asked(config, is_dry_run=False, no_brake=brake_lack(facts, config))
    found = in_effect(wish, config, source=said.source, lack=None)
    assert (said.mode, said.mode_reason) == (found.name, found.reason)
    assert said.can_hold or said.mode != "enforce"
