# SPDX-License-Identifier: Apache-2.0
"""What rules and limits are told of a holder: by /proc, the files of runtimes, and never more than is known."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.images import Image, Images
from fairsched.cgroup.journal import BrakeName, Entry, Journal, read_boot_id
from fairsched.guard.sample import Sample
from fairsched.reclaim.facts import read_facts
from fairsched.reclaim.ports import Ports
from fairsched.reclaim.programs import Programs
from fairsched.reclaim.rounds import Collector, unit_of
from tests.unit.reclaim import made

DOCKER = f"/system.slice/docker-{'3f' * 32}.scope"
Child = subprocess.Popen[str]
PATIENT_S = 60.0
"""Of reading in a look: so long as a test may take on a busy machine."""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """Runs a file of its own, so that its bytes can be changed."""
    program = tmp_path / "sleep"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([str(program), "300"], text=True)
    yield process
    process.kill()
    process.wait()


def digests(programs: Programs, pid: int) -> str | None:
    owner, link = (pid, 7), os.readlink(f"/proc/{pid}/exe")
    programs.digests([(owner, link)])
    programs.join(10)
    found = programs.digests([(owner, link)])
    programs.join(10)  # that was a look as well, and while one goes on none begins
    return found.get(owner)


def test_a_round_has_what_is_known_and_none_for_the_rest(child: Child) -> None:
    facts = read_facts(child.pid)
    assert facts is not None
    known = made.holder(replace(facts, cgroup="/system.slice/train.service"))
    lost = replace(made.holder(replace(facts, pid=2)), facts=None)
    view = replace(made.VIEW, busy_ratio=0.5)
    collector = Collector(cast(Any, None))
    collector.programs = Programs(look_s=PATIENT_S)
    for _ in range(2):
        found = collector.round_of(made.listing([known, lost], {}, view), 50.0)
        collector.programs.join(10)
    (sample,) = found.samples
    process = sample.process
    assert (process.pid, process.start_ticks, process.unit) == (child.pid, facts.start_ticks, "train.service")
    assert process.started_s is not None and process.boot_id
    assert process.program_digest == f"sha256:{hashlib.sha256(Path('/bin/sleep').read_bytes()).hexdigest()}"
    assert (process.image, process.image_digest, sample.launches, sample.remote_ports) == (None,) * 3 + ((),)
    assert found.gpus[made.GPU].busy_ratio == 0.5
    assert found.t_s == 50.0


def test_a_round_has_the_counters_of_tenants_and_the_indexes_of_gpus() -> None:
    counters = {"chat": {made.GPU: 1.5}}
    collector = Collector(cast(Any, None), tenants=lambda: counters)
    for index, number in (("3", 3), ("3/1/0", 3), ("-", None), ("", None), ("²", None)):
        found = collector.round_of(made.listing([], {}, replace(made.VIEW, index=index)), 1.0)
        assert (found.tenants, found.gpus[made.GPU].index) == (counters, number)


def test_a_process_is_the_same_in_each_round(child: Child) -> None:
    """Else a tape would have it anew each time."""
    facts = read_facts(child.pid)
    assert facts is not None
    collector = Collector(cast(Any, None))
    seen = set()
    for _ in range(4):
        seen.add(collector.round_of(made.listing([made.holder(facts)], {}), 1.0).samples[0].process)
        collector.programs.join(10)
    assert len(seen) <= 2, "without its digest, and with it"


def test_a_program_that_changed_has_another_digest(child: Child, tmp_path: Path) -> None:
    programs = Programs(look_s=PATIENT_S)
    first = digests(programs, child.pid)
    child.kill()
    child.wait()
    with open(tmp_path / "sleep", "ab") as file:
        file.write(b"x")
    with subprocess.Popen([str(tmp_path / "sleep"), "300"]) as other:
        try:
            assert digests(programs, other.pid) not in (None, first)
        finally:
            other.kill()


def test_a_process_that_runs_another_program_has_no_digest_of_the_first() -> None:
    """It was allowed, and has become something else: the next look finds out."""
    words = "import os, sys; sys.stdin.readline(); os.execv('/bin/sleep', ['x', '300'])"
    with subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, text=True) as process:
        try:
            programs = Programs(look_s=PATIENT_S)
            first = digests(programs, process.pid)
            assert first is not None and process.stdin is not None
            link = os.readlink(f"/proc/{process.pid}/exe")
            process.stdin.write("\n")
            process.stdin.flush()
            while os.readlink(f"/proc/{process.pid}/exe") == link:
                pass
            assert programs.digests([((process.pid, 7), "/bin/sleep")]).get((process.pid, 7)) != first
            programs.join(10)
            second = digests(programs, process.pid)
            assert second not in (None, first)
        finally:
            process.kill()


def test_large_and_slow_programs_have_no_digest_or_a_later_one(child: Child) -> None:
    assert digests(Programs(most_bytes=10), child.pid) is None
    ticks = iter(range(1000))
    programs = Programs(look_s=0.5, now_s=lambda: float(next(ticks)))
    assert digests(programs, child.pid) is None, "no time in a look"


def test_a_file_that_hangs_costs_its_process_its_digest_and_nobody_else(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that a tenant serves and does not answer for: here a pipe that nobody writes to."""
    now = [0.0]
    programs = Programs(now_s=lambda: now[0])
    read_end, write_end = os.pipe()
    original = Programs._digest

    def digest(self: Programs, owner: tuple[int, int], until_s: float) -> str | None:
        if owner[0] == 1:
            os.read(read_end, 1)
        return original(self, owner, until_s)

    monkeypatch.setattr(Programs, "_digest", digest)
    good = ((child.pid, 7), os.readlink(f"/proc/{child.pid}/exe"))
    wanted = [((1, 1), "/a"), good]
    assert programs.digests(wanted) == {}
    programs.join(0.05)
    now[0] = 60.0
    programs.digests(wanted)
    programs.join(10)
    assert list(programs.digests(wanted)) == [good[0]]
    os.write(write_end, b"x")
    os.close(write_end)


def test_ports_are_those_called_not_those_of_callers() -> None:
    """In a network namespace of its own, over an address that is no loopback one."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    script = """
import socket, subprocess, os, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "10.9.8.7/32", "dev", "lo"], check=True)
pairs = []
for host, port in (("10.9.8.7", 3333), ("127.0.0.1", 4444), ("::ffff:10.9.8.7", 5555)):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family); server.bind((host, port)); server.listen()
    client = socket.socket(family); client.connect((host, port))
    pairs.append((server, client, server.accept()[0]))
print("ready", flush=True); sys.stdin.readline()
"""
    words = ["unshare", "-n", sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert Ports().of(process.pid) == (3333, 5555)
        process.kill()


def test_without_connections_there_are_no_ports_and_of_who_is_gone_none_are_known() -> None:
    a, b = socket.socketpair()
    with a, b, subprocess.Popen(["sleep", "300"]) as process:
        assert Ports().of(process.pid) == ()
        process.kill()
    assert Ports().of(process.pid) is None


@pytest.mark.parametrize(("host", "is_server"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_server_listens_for_other_hosts_and_so_do_its_workers(
    child: Child, host: str, is_server: bool
) -> None:
    with socket.create_server((host, 0)):
        assert Ports().is_serving(os.getpid()) is is_server
        assert Ports().is_serving(child.pid, [os.getpid()]) is is_server, "a worker of it"
        assert Ports().is_serving(child.pid) is False
    assert Ports().is_serving(2**22, [os.getpid()]) is None


def test_the_kernel_of_a_notebook_is_no_server_for_its_own_is_one() -> None:
    """It listens on loopback, for a front that listens for all."""
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('up', flush=True); input()"
    words = [sys.executable, "-c", script]
    with (
        socket.create_server(("0.0.0.0", 0)),
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel,
    ):
        assert kernel.stdout is not None and kernel.stdout.readline() == "up\n"
        assert Ports().is_serving(kernel.pid, [os.getpid()]) is False
        kernel.kill()


def test_a_worker_serves_with_those_above_it_in_its_cgroup_alone(child: Child) -> None:
    facts, me = read_facts(child.pid), read_facts(os.getpid())
    assert facts is not None and me is not None
    facts, me = replace(facts, cgroup="/a"), replace(me, cgroup="/a")
    collector = Collector(cast(Any, None))
    with socket.create_server(("0.0.0.0", 0)):
        for above, is_serving in ((me, True), (replace(me, cgroup="/b"), False), (replace(me, uid=9), False)):
            table = {os.getpid(): above, child.pid: facts}
            found = collector.round_of(made.listing([made.holder(facts)], table), 1.0)
            assert found.samples[0].is_serving is is_serving


def test_who_is_stopped_is_told_and_a_hold_of_fairsched_is_none(child: Child, tmp_path: Path) -> None:
    collector = Collector(cast(Any, None), run_dir=tmp_path)

    def sample(**changes: Any) -> Sample:
        facts = read_facts(child.pid)
        assert facts is not None
        return collector.round_of(made.listing([made.holder(replace(facts, **changes))], {}), 1.0).samples[0]

    assert sample(state="S").is_paused is False
    assert sample(state="T").is_paused is True
    assert sample(state="t").is_paused is True, "at a breakpoint"
    (tmp_path / "holds").mkdir(mode=0o700)
    facts = read_facts(child.pid)
    assert facts is not None
    with contextlib.closing(Journal(str(tmp_path / "holds"))) as journal:
        journal.write(
            Entry(
                cgroup_id=7,
                path="/a",
                tenant="a",
                boot_id=read_boot_id(),
                reason="over_entitlement",
                since_ns=1,
                deadline_ns=2,
                daemon=ProcessId.me(),
                brake=BrakeName.SIGSTOP,
                stopped=(facts.id,),
            )
        )
    assert sample(state="T").is_paused is False


def test_what_an_mps_server_launches_is_not_known(child: Child) -> None:
    """It launches nothing itself: its clients do."""
    facts = read_facts(child.pid)
    assert facts is not None
    status = replace(made.holder(facts).status, launches=0, idle_s=9e5)
    collector = Collector(cast(Any, None))
    client = made.holder(replace(facts, pid=2), mps="client")
    for mps, launches, others, known in (
        ("server", 0, [client], None),
        ("server", 7, [client], 7),
        ("server", 0, [], 0),
        ("client", 0, [client], 0),
        (None, 0, [client], 0),
    ):
        holder = replace(made.holder(facts), status=replace(status, launches=launches), mps=mps)
        sample = collector.round_of(made.listing([holder, *others], {}), 1.0).samples[0]
        assert (sample.launches, sample.idle_s is None) == (known, known is None)


def test_a_unit_is_the_hosts_and_not_one_that_a_user_made() -> None:
    assert unit_of("/system.slice/train.service/workers") == "train.service"
    assert unit_of("/user.slice/user-7.slice/user@7.service/app.slice/train.service") is None
    assert unit_of(f"{DOCKER}/system.slice/train.service") is None


def test_an_image_is_what_the_runtime_wrote_of_a_container_of_the_host(tmp_path: Path) -> None:
    where = tmp_path / f"var/lib/docker/containers/{'3f' * 32}"
    where.mkdir(parents=True)
    document = {"Name": "/a", "Image": f"sha256:{'ab' * 32}", "Config": {"Image": "ml/train:3"}}
    (where / "config.v2.json").write_text(json.dumps(document))
    storage = tmp_path / "var/lib/containers/storage/overlay-containers"
    storage.mkdir(parents=True)
    crio = {"id": "5c" * 32, "image": "cd" * 32, "metadata": json.dumps({"image-name": "ml/serve:1"})}
    (storage / "containers.json").write_text(json.dumps([crio]))
    images = Images(str(tmp_path))
    assert images.of(f"{DOCKER}/worker") == Image("ml/train:3", f"sha256:{'ab' * 32}")
    assert images.of(f"/machine.slice/crio-{'5c' * 32}.scope") == Image("ml/serve:1", f"sha256:{'cd' * 32}")
    for cgroup in ("/", f"/system.slice/a.service{DOCKER}", f"/system.slice/docker-{'4f' * 32}.scope"):
        assert images.of(cgroup) == Image()
    (where / "config.v2.json").write_text("[" * 100_000)
    assert Images(str(tmp_path)).of(DOCKER) == Image()
