# SPDX-License-Identifier: Apache-2.0
"""The nice value of a helper with a session of its own counts against other sessions, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
ASK = """
import os, pathlib, sys
from fairsched.base.niceness import set_nice
before = pathlib.Path("/proc/self/autogroup").read_text().split()[-1]
granted = set_nice(7)
print(granted, os.getpriority(os.PRIO_PROCESS, 0), before, pathlib.Path("/proc/self/autogroup").read_text().split()[-1])
"""


@pytest.mark.skipif(
    not AUTOGROUP.exists(), reason="host: this kernel does not group by session (CONFIG_SCHED_AUTOGROUP)"
)
@pytest.mark.parametrize("is_leader", [True, False])
def test_the_session_is_niced_by_its_leader_only(is_leader: bool) -> None:
    """In a session of the test's own: processes of the first one, which has no leader, are in no group at all."""
    follower = [] if is_leader else ["sh", "-c", '"$@"; exit $?', "sh"]
    ran = subprocess.run(
        [*follower, sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    granted, mine, before, after = ran.stdout.split()
    assert (granted, mine) == ("True", "7")
    assert after == ("7" if is_leader else before), "the session of whoever started it is not ours to change"


def test_what_is_refused_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairsched.base import niceness

    def refuse(_which: int, _who: int, _value: int) -> None:
        raise PermissionError

    monkeypatch.setattr(niceness.os, "setpriority", refuse)
    assert not niceness.set_nice(-10)
