# SPDX-License-Identifier: Apache-2.0
"""``fairsched demo``: the real daemon, real cgroups and eBPF, four tenants on a simulated GPU; before and after.

| file | what |
|---|---|
| ``scene.py`` | the tenants, their weights, and the daemon's configuration |
| ``stage.py`` | brings all of it to life: simulated GPU, cgroups, daemon, janitor |
| ``janitor.py`` | a process of its own that removes everything, also after kill -9 of the demo |
| ``record.py`` | samples while it runs: the engine's truth, the tenants' steps, the daemon's account |
| ``result.py`` | figures from the samples; pure |
| ``screen.py``, ``report.py``, ``picture.py`` | the moving view, the table, the picture |
| ``play.py`` | the run from beginning to end |

Importing the package costs nothing: the janitor lives in it and must be small.
"""

from __future__ import annotations

from pathlib import Path


def run_demo(*, seconds: float, png: Path | None, as_json: bool, is_live: bool) -> int:
    """Two halves of ``seconds`` each, then the figures. Returns the exit status.

    Raises HostUnsupported (status 3) where the host cannot, other FairschedErrors (1) when it failed.
    """
    from fairsched.demo.play import play

    return play(seconds=seconds, png=png, as_json=as_json, is_live=is_live)
