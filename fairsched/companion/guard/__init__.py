# SPDX-License-Identifier: Apache-2.0
"""The guard's hands: looks at who is on the GPUs, keeps what it sees, and does what limits say.

Problem: limits of hours and days are nothing for the loop, which shares a GPU out many times a second; and whoever ends
people's processes must write down why, first, and give back whatever it took.

Approach: a part of the companion. One thread makes rounds (reclaim/rounds.py), records them on tapes, has them judged
(fairsched/guard, which is pure) and does what the judge asks for: it warns, lowers quotas for a while, and has
processes ended by the means of ``fairsched reclaim``.

| file | what |
|---|---|
| ``setup.py`` | from the configuration to a part |
| ``part.py`` | the part, and one that only gives back |
| ``watch.py`` | a round from the look to what is kept of it |
| ``tapes.py`` | rounds of the last days |
| ``hands.py`` | breaches in, acts out |
| ``slowing.py``, ``lowered.py`` | holds and memory limits; settings that are lowered for a while |
| ``ending.py`` | ends, one at a time |
| ``unknown.py`` | names in the configuration that are nobody's |
| ``records.py`` | the audit log, the log, deeds and numbers |

Files in ``state_dir/guard``: tapes, ``judge.json``, ``lowered.json``, ``lock``; in ``run_dir`` the status.
"""

from pathlib import Path
from typing import Any

LOWERED_FILE = "lowered.json"
STATE_FILE = "judge.json"
STATUS_FILE = "guard.json"
"""In run_dir: a ``fairsched.guard.report.GuardStatus``."""


def directory_of(state_dir: Path) -> Path:
    """Where tapes and state are."""
    return state_dir / "guard"


def is_left(state_dir: Path) -> bool:
    """Whether a setting of a tenant is on record as lowered."""
    return (directory_of(state_dir) / LOWERED_FILE).exists()


def state_for(state: Any, mode: str) -> Any:
    """What a judge goes on from in `mode`; where the last one was a dry run, and this acts, nobody is warned yet."""
    if isinstance(state, dict) and mode == "act" and state.get("mode") != "act":
        return {**state, "ladders": []}
    return state
