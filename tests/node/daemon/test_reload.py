# SPDX-License-Identifier: Apache-2.0
"""What a reload takes away or adds; bad files and changed weights are in test_config.py."""

from __future__ import annotations

import signal

import pytest

from tests.node.daemon.site import PATIENCE_S, Site, logged
from tests.support import wait_until


def tenants_of(site: Site) -> set[str]:
    return {tenant["name"] for tenant in site.status()["tenants"]}


@pytest.mark.parametrize("how", ["signal", "socket"])
def test_a_parent_that_the_new_file_does_not_name_ends_nobody(site: Site, how: str) -> None:
    tenants = {"chat": {}, "team": {"children": {"p*": {"children": {"d": {}}}}}}
    site.configure(tenants, mechanisms={"guardian": "off"})
    for name in ("team/p1/d", "team/other"):
        site.make_cgroup(name)
    site.start()
    wait_until(
        lambda: {"team", "team/p1", "team/p1/d", "team/other"} <= tenants_of(site), PATIENCE_S, "all are seen"
    )
    site.configure({"chat": {}, "late": {}}, mechanisms={"guardian": "off"})
    if how == "signal":
        assert site.process is not None
        site.process.send_signal(signal.SIGHUP)
    else:
        assert site.ask("reload")
    wait_until(lambda: tenants_of(site) == {"chat", "late"}, PATIENCE_S, "the new file is in force")
    assert site.ping() == site.pid
    assert site.status()["own"]["errors"]["tick"] == 0
    assert logged(site.log(), "Traceback|tick failed|exception=") == []
