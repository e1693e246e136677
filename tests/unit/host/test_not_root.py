# SPDX-License-Identifier: Apache-2.0
"""What the doctor of who is not root knows: what it may look at, and that the rest is not known."""

from __future__ import annotations

import os

import pytest

from fairsched.config import Config
from fairsched.host.checks import checks
from fairsched.host.choose import choose
from fairsched.host.gather import gather
from tests.unit.host.test_host import ALL, capable_host, config


def test_who_is_not_root_cannot_tell_whether_it_can_run_only_whether_it_cannot() -> None:
    choices = choose(capable_host(is_root=False), config())
    assert (choices.can_run, choices.obstacles) == (None, ())
    assert choices.not_looked_at
    assert choose(capable_host(is_root=False, cgroup_mount=None), config()).can_run is False
    (root, *_) = checks(capable_host(is_root=False), config())
    assert all(what in root.choice for what in choices.not_looked_at)


def test_that_somebody_is_refused_says_nothing_about_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that nobody but root may load it is not known whether it can be loaded."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr("fairsched.host.gather.privileges", lambda: (frozenset(), None))
    monkeypatch.setattr("fairsched.host.gather.capabilities_of_root", lambda: ALL)
    facts = gather(Config())
    assert (facts.is_root, facts.bpf, facts.hooks, facts.pid_view) == (False, None, None, None)
    assert facts.capabilities == ALL
