# SPDX-License-Identifier: Apache-2.0
"""What the daemon says, and with which status it ends, where the host lacks something."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.daemon.site import COMMAND, DECODE, GREEDY, PATIENCE_S, Site, is_asked
from tests.support import let_run, wait_until

CANNOT = 3
WITHOUT_BPF = ["setpriv", "--bounding-set", "-sys_admin,-bpf,-perfmon"]
# Everything is imported while we are root: the checkout may lie where others may not read.
AS_NOBODY = """
import os, sys
import fairsched.cli.run, fairsched.daemon.loop
from fairsched.cli import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
main(["run", "--once"])
"""


def run(site: Site, *wrapper: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, *COMMAND, "run", "--once", "--config", str(site.config_path)]
    return subprocess.run(
        command, env={**site.env(), **(env or {})}, capture_output=True, text=True, timeout=120
    )


def expect_refusal(done: subprocess.CompletedProcess[str], what: str, remedy: str) -> None:
    assert done.returncode == CANNOT, done.stderr
    assert what in done.stderr
    assert "remedy: " in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def no_bcc(tmp_path: Path) -> dict[str, str]:
    """An environment in which bcc cannot be imported."""
    directory = tmp_path / "no-bcc"
    directory.mkdir()
    (directory / "bcc.py").write_text("raise ImportError(\"No module named 'bcc'\")\n")
    return {"PYTHONPATH": str(directory)}


def with_path(site: Site, env: dict[str, str]) -> dict[str, str]:
    return {"PYTHONPATH": f"{env['PYTHONPATH']}:{site.env()['PYTHONPATH']}"}


def test_not_root(module_site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY], env=module_site.env(), capture_output=True, text=True, timeout=120
    )
    expect_refusal(done, "needs root", "sudo")


@pytest.mark.parametrize(
    ("gone", "message", "remedy"),
    [
        ("cgroup2", "eBPF is required, but cgroup v2 is not in use", "mechanisms.ebpf"),
        ("cgroup2,cgroup", "no cgroup v2 hierarchy is mounted", "mount -t cgroup2"),
    ],
)
def test_no_cgroup2(module_site: Site, gone: str, message: str, remedy: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: install util-linux (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)")
    module_site.configure({})
    script = f'umount --all --types {gone} && exec "$@"'
    done = run(module_site, "unshare", "--mount", "sh", "-c", script, "sh")
    if "must be superuser" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("host: mount namespaces may not be made here")
    expect_refusal(done, message, remedy)


def test_no_bpf(module_site: Site) -> None:
    module_site.configure({})
    expect_refusal(run(module_site, *WITHOUT_BPF), "refused the GPU time programs", "fairsched doctor")


def test_no_bcc(module_site: Site, no_bcc: dict[str, str]) -> None:
    module_site.configure({})
    done = run(module_site, env=with_path(module_site, no_bcc))
    expect_refusal(done, "bcc cannot be imported", "python3-bpfcc")


def test_wrong_bcc(module_site: Site, tmp_path: Path) -> None:
    """PyPI's package of that name."""
    module_site.configure({})
    (tmp_path / "bcc.py").write_text("lattice = 'body-centred cubic'\n")
    done = run(module_site, env=with_path(module_site, {"PYTHONPATH": str(tmp_path)}))
    expect_refusal(done, "lattice library", "pip uninstall bcc")


def test_no_nvml_where_it_is_required(module_site: Site, tmp_path: Path) -> None:
    module_site.configure({}, mechanisms={"nvml": "required"})
    done = run(module_site, env={"LD_LIBRARY_PATH": str(tmp_path)})
    expect_refusal(done, "NVML is required", "libnvidia-ml.so.1")


def test_without_any_account(module_site: Site, no_bcc: dict[str, str]) -> None:
    module_site.configure({}, mechanisms={"ebpf": "auto", "nvml": "off"})
    done = run(module_site, env=with_path(module_site, no_bcc))
    expect_refusal(done, "GPU time cannot be accounted here", "fairsched doctor")


def test_on_samples_alone_the_daemon_watches_and_holds_nobody(
    site: Site, no_bcc: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.configure({"chat": {"weight": 9}, "greedy": {"weight": 1}}, mechanisms={"ebpf": "auto"})
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", with_path(site, no_bcc)["PYTHONPATH"])
        site.start()
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)
    wait_until(lambda: site.tenant("greedy")["gpu_time_s"], PATIENCE_S, "it is sampled")
    status = site.status()
    assert status["source"] == "nvml"
    assert "bcc" in status["source_reason"]
    let_run(1)
    assert site.decisions("greedy") == []
    assert not any(is_asked(site.cgroup(name)) for name in ("chat", "greedy"))
    assert site.stop() == 0


def test_second_daemon_refuses_and_the_first_goes_on(site: Site) -> None:
    site.configure({"chat": {}})
    site.start()
    done = run(site)
    assert done.returncode == 1, done.stderr
    assert f"another fairsched is running (pid {site.pid})" in done.stderr
    assert "remedy: " in done.stderr
    wait_until(lambda: site.ping() == site.pid, PATIENCE_S, "the first answers still")
