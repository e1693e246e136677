# SPDX-License-Identifier: Apache-2.0
"""What our tables have lost of one tenant is no excuse for another: who works unseen is still named and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, is_running, logged
from tests.node.hostile.hollow import Hollow
from tests.support import let_run, wait_until

STATIC = Workload("static", kernels=20, kernel_us=500)
SETTLED_S = 6.0
"""A daemon that has just begun believes that there may be work it has not seen yet."""


@pytest.mark.rest
def test_a_seventeenth_context_anywhere_saves_nobody_from_being_ended(site: Site, tmp_path: Path) -> None:
    site.configure({name: {"on_misbehaviour": "terminate"} for name in ("chat", "bad", "hog")})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    Hollow(site, "hog", tmp_path, "play_contexts", 1, 17, 1).play()
    wait_until(lambda: logged(site.log(), "budget=exceeded tenant=hog"), PATIENCE_S, "it had one too many")
    let_run(SETTLED_S)
    bad = site.spawn("bad", STATIC)
    wait_until(lambda: not is_running(bad.pid), PATIENCE_S, "it is ended")
    assert logged(site.log(), "misbehaviour=unseen action=terminate tenant=bad")
    assert not logged(site.log(), "(misbehaviour|terminate)=.*tenant=(chat|hog)")
    assert chat.is_running
