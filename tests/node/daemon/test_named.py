# SPDX-License-Identifier: Apache-2.0
"""Tenants by name with the real daemon: units of systemd, whose names are in the path; holds, `ps` and `status`.

Names that are in files of a runtime are read from made files in tests/unit: a test writes nothing into /var/lib/docker.
"""

from __future__ import annotations

import json
import os
import re

from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged
from tests.support import wait_until


def test_units_are_tenants_are_held_and_known_by_their_names(site: Site) -> None:
    mine = f"{os.getpid()}-{Site.count}"
    units = {name: f"fairsched-{mine}-{name}.service" for name in ("chat", "batch")}
    site.configure(
        {
            "chat": {"cgroup": None, "match": {"unit": units["chat"]}, "weight": 4},
            "batch": {"cgroup": None, "match": {"unit": f"fairsched-{mine}-b*.service"}, "class": "batch"},
        }
    )
    places = {name: site.make_cgroup(unit) for name, unit in units.items()}
    inner = site.make_cgroup(f"{units['batch']}/docker-{'3f' * 32}.scope")
    site.start()
    site.spawn("chat", STEADY, places["chat"])
    wait_until(lambda: logged(site.log(), "library=.* probes=[1-9]"), PATIENCE_S, "libcuda has its probes")
    site.spawn("chat", STEADY, places["chat"])
    site.spawn("batch", GREEDY, inner)
    wait_until(lambda: is_asked(places["batch"]), PATIENCE_S, "the unit is held, with the container in it")
    assert not is_asked(inner)

    listed = json.loads(site.cli("ps", "--json", "--config", str(site.config_path)).stdout)
    assert {(one["tenant"], one["known_as"]) for one in listed} == {
        (name, f"unit {unit}") for name, unit in units.items()
    }
    assert site.tenant("batch")["known_as"] == [f"unit {units['batch']}"]
    shown = site.cli("status", "--full", "--config", str(site.config_path)).stdout
    assert re.search(rf"^  unit {re.escape(units['chat'])}$", shown, re.MULTILINE)
