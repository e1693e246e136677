# SPDX-License-Identifier: Apache-2.0
"""The tests want the programs of Prometheus, Alertmanager and systemd; no machine must get more with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.unit.repo.tree import ROOT

SCRIPT = """
set -eu
source <(sed -n '/^start_no_services()/,/^}/p; /^SERVERS=/p' scripts/setup)
UNITS=$1 POLICY=$2 OUR_POLICY=''
trap '[ -z "$OUR_POLICY" ] || rm -f "$OUR_POLICY"' EXIT
start_no_services gcc prometheus
[ ! -x "$POLICY" ] || "$POLICY" prometheus start || echo "policy=$?"
"""


def start_no_services(units: Path, policy: Path) -> str:
    run = subprocess.run(
        ["bash", "-c", SCRIPT, "setup", str(units), str(policy)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_server_that_is_about_to_be_installed_is_masked_and_not_started(tmp_path: Path) -> None:
    units, policy = tmp_path / "units", tmp_path / "policy-rc.d"
    assert start_no_services(units, policy) == "policy=101", "what invoke-rc.d takes for: do not start"
    assert [path.name for path in units.iterdir()] == ["prometheus.service"]
    assert (units / "prometheus.service").readlink() == Path("/dev/null")
    assert not policy.exists(), "gone with the script"


def test_what_somebody_has_decided_about_services_stays(tmp_path: Path) -> None:
    units, policy = tmp_path / "units", tmp_path / "policy-rc.d"
    units.mkdir()
    (units / "prometheus.service").write_text("[Service]\n")
    policy.write_text("#!/bin/sh\nexit 0\n")
    policy.chmod(0o755)
    assert start_no_services(units, policy) == ""
    assert (units / "prometheus.service").read_text() == "[Service]\n"
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"


def test_the_policy_goes_however_the_set_up_ends() -> None:
    text = (ROOT / "scripts/setup").read_text(encoding="utf-8")
    assert "trap leave EXIT" in text
    assert 'rm -f "$OUR_POLICY"' in text.partition("leave()")[2].partition("\n}")[0]


KEEP = """
set -eu
source <(sed -n '/^keep_resolver()/,/^}/p' scripts/setup)
RESOLVER=$1
replace() { rm "$RESOLVER"; ln -s ../run/nobody/resolv.conf "$RESOLVER"; return 7; }
status=0
keep_resolver "$2" || status=$?
echo "status=$status"
"""


def keep_resolver(resolver: Path, command: str) -> str:
    run = subprocess.run(
        ["bash", "-c", KEEP, "setup", str(resolver), command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def test_a_package_that_takes_the_resolver_away_gives_it_back(tmp_path: Path) -> None:
    """As systemd of Ubuntu 22.04 in a container: nothing could be fetched any more."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\n")
    assert keep_resolver(resolver, "replace") == "status=7", "how the installation went is not lost"
    assert not resolver.is_symlink()
    assert resolver.read_text() == "nameserver 192.0.2.1\n"


def test_a_resolver_that_is_a_link_already_is_left_as_it_is(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.symlink_to("elsewhere")
    assert keep_resolver(resolver, "true") == "status=0"
    assert resolver.readlink() == Path("elsewhere")
