# SPDX-License-Identifier: Apache-2.0
"""Names from made files of each runtime, and from files that somebody has tampered with."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest

from fairsched.cgroup import names as module
from fairsched.cgroup.identity import layers_of
from fairsched.cgroup.names import MOST_BYTES, MOST_ENTRIES, Book, Names, known_as, name_of
from tests.support import wait_until

ID = "3f" * 32
OTHER = "ab" * 32
UID = "0a1b2c3d-1111-2222-3333-444455556666"
HASH = "9c" * 16


class Host:
    """A made file system, and a clock that is turned by hand."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 100.0
        self.names = Names(str(root), lambda: self.now_s)

    def write(self, path: str, text: str | bytes) -> Path:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
        return where

    def docker(self, name: object, container_id: str = ID, data: str = "var/lib/docker") -> Path:
        return self.write(f"{data}/containers/{container_id}/config.v2.json", json.dumps({"Name": name}))

    def podman(self, name: object, file: str = "containers.json") -> Path:
        listed = [{"id": OTHER, "image": "x"}, {"id": ID, "names": [name]}]
        return self.write(f"var/lib/containers/storage/overlay-containers/{file}", json.dumps(listed))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_docker_writes_the_name_beside_the_container(host: Host) -> None:
    host.docker("/chat")
    assert host.names.of(Book.DOCKER, ID) == "chat"


def test_docker_may_keep_its_containers_elsewhere(host: Host) -> None:
    host.write("etc/docker/daemon.json", '{"data-root": "/data/docker"}')
    host.docker("/chat", data="data/docker")
    assert host.names.of(Book.DOCKER, ID) == "chat"


@pytest.mark.parametrize(
    "told", ['{"data-root": "/../../x"}', '{"data-root": 3}', "[]", "{", '{"data-root": "x"}']
)
def test_a_strange_daemon_json_is_as_none(host: Host, told: str) -> None:
    host.write("etc/docker/daemon.json", told)
    host.docker("/chat")
    assert host.names.of(Book.DOCKER, ID) == "chat"


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_podman_writes_one_list_of_those_that_stay_and_one_of_those_that_do_not(
    host: Host, file: str
) -> None:
    host.podman("web", file)
    assert host.names.of(Book.PODMAN, ID) == "web"
    assert host.names.of(Book.PODMAN, OTHER) is None


def test_nerdctl_keeps_a_file_for_each_name(host: Host) -> None:
    host.write("var/lib/nerdctl/1935db59/names/default/llama", ID + "\n")
    host.write("var/lib/nerdctl/1935db59/etchosts/default/x", "")
    assert host.names.of(Book.NERDCTL, ID) == "llama"


def test_the_kubelet_keeps_a_directory_for_each_pod(host: Host) -> None:
    for entry in (f"ml_llama-0_{UID}", f"kube-system_etcd-node1_{HASH}", "stray"):
        (host.root / "var/log/pods" / entry).mkdir(parents=True)
    assert host.names.of(Book.PODS, UID) == "ml/llama-0"
    assert host.names.of(Book.PODS, HASH) == "kube-system/etcd-node1"


def test_a_user_has_the_first_name_of_its_number(host: Host) -> None:
    host.write("etc/passwd", "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:\nmallory:x:1000:1::/:\nshort:x\n")
    assert host.names.of(Book.USERS, "1000") == "alice"


def test_what_is_nowhere_has_no_name_and_that_is_no_failure(host: Host) -> None:
    for book in Book:
        assert host.names.of(book, ID) is None
    assert not host.names.failures


def test_a_name_is_read_once(host: Host) -> None:
    where = host.docker("/chat")
    assert host.names.of(Book.DOCKER, ID) == "chat"
    where.unlink()
    assert host.names.of(Book.DOCKER, ID) == "chat"


def test_a_name_that_comes_later_is_found_and_told(host: Host) -> None:
    assert host.names.of(Book.DOCKER, ID) is None
    host.docker("/chat")
    assert host.names.of(Book.DOCKER, ID) is None, "not looked for at each question"
    version = host.names.version
    host.now_s += 2
    assert host.names.of(Book.DOCKER, ID) == "chat"
    assert host.names.version == version + 1


def test_what_has_no_name_is_looked_for_ever_later_and_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []
    monkeypatch.setitem(
        module._READERS, Book.DOCKER, lambda _root, _keys: looked.append(host.now_s) or iter(())
    )
    host.names.of(Book.DOCKER, ID)
    for _ in range(2000):
        host.now_s += 0.5
        host.names.poll()
    gaps = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert gaps == sorted(gaps)
    assert len(looked) == 12
    host.names.ask_again()
    host.names.poll()
    assert len(looked) == 13


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/../x",
        "/a/b",
        "/a b",
        "/\x1b[2Jx",
        "/\u202egnp",
        "/" + "a" * 300,
        "/-x",
        7,
        None,
        ["/x"],
        {},
    ],
)
def test_a_name_that_the_runtime_would_not_allow_is_refused(host: Host, name: object) -> None:
    host.docker(name)
    host.podman(name)
    assert host.names.of(Book.DOCKER, ID) is None
    assert host.names.of(Book.PODMAN, ID) is None
    assert sum(host.names.failures.values()) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "[" * 100_000, b"\xff\xfe", '{"name": "/x"}', '{"Name": "/x"', "null"]
)
def test_a_damaged_file_is_a_failure_that_is_counted(host: Host, text: str | bytes) -> None:
    host.write(f"var/lib/docker/containers/{ID}/config.v2.json", text)
    assert host.names.of(Book.DOCKER, ID) is None
    assert sum(host.names.failures.values()) == 1


@pytest.mark.parametrize(
    "text", ["{}x", '[{"names": ["x"]}]', "[1]", '{"id": 1}', f'[{{"id": "{ID}", "names": 5}}]']
)
def test_a_damaged_list_is_a_failure_that_is_counted(host: Host, text: str) -> None:
    host.write("var/lib/containers/storage/overlay-containers/containers.json", text)
    assert host.names.of(Book.PODMAN, ID) is None
    assert sum(host.names.failures.values()) == 1


def test_a_file_that_is_too_long_is_not_read(host: Host) -> None:
    where = host.docker("/chat")
    where.write_text(where.read_text() + " " * MOST_BYTES)
    assert host.names.of(Book.DOCKER, ID) is None
    assert host.names.failures == {(Book.DOCKER, "not in the form that is documented"): 1}


def test_a_link_is_not_followed_and_a_pipe_not_waited_for(host: Host) -> None:
    secret = host.write("secret", '{"Name": "/stolen"}')
    link, pipe = (host.root / f"var/lib/docker/containers/{key}/config.v2.json" for key in (ID, OTHER))
    for where in (link, pipe):
        where.parent.mkdir(parents=True)
    link.symlink_to(secret)
    os.mkfifo(pipe)
    assert host.names.of(Book.DOCKER, ID) is None
    assert host.names.of(Book.DOCKER, OTHER) is None
    with open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0) as writer:
        writer.write(b'{"Name": "/piped"}')
        host.now_s += 10
        host.names.poll()
        assert host.names.of(Book.DOCKER, OTHER) is None
        assert os.read(writer.fileno(), 100) == b'{"Name": "/piped"}', "nothing of it was taken"


def test_one_container_with_a_damaged_file_hides_no_other(host: Host) -> None:
    host.docker("/chat")
    host.docker("/", container_id=OTHER).write_text("{")
    host.write("var/lib/nerdctl/1935db59/names/default/a", b"\xff")
    host.write("var/lib/nerdctl/1935db59/names/default/b", ID)
    with host.names._lock:
        for key in (OTHER, ID):
            host.names._unknown[Book.DOCKER, key] = host.names._unknown[Book.NERDCTL, key] = (0.0, 0)
    host.names.poll()
    assert host.names.of(Book.DOCKER, ID) == "chat"
    assert host.names.of(Book.NERDCTL, ID) == "b"


@pytest.mark.parametrize("key", ["..", ".", "../../../secret", "a/b", "", "a\0b", "x" * 300])
def test_an_id_does_not_lead_out_of_the_directory(host: Host, key: str) -> None:
    (host.root / "var/lib/docker/containers").mkdir(parents=True)
    host.write("var/lib/docker/config.v2.json", '{"Name": "/up"}')
    host.write("secret/config.v2.json", '{"Name": "/out"}')
    assert host.names.of(Book.DOCKER, key) is None
    assert not host.names.failures


def test_so_many_pods_are_listed_and_no_more(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    assert MOST_ENTRIES > 110 * 10
    for number in range(9):
        (host.root / f"var/log/pods/ml_pod-{number}_uid{number}").mkdir(parents=True)
    assert sum(host.names.of(Book.PODS, f"uid{number}") is not None for number in range(9)) == 3


def test_so_many_ids_are_remembered_and_no_more(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IDS", 5)
    for number in range(50):
        host.docker("/chat", container_id=f"id{number}")
        host.names.of(Book.DOCKER, f"id{number}")
        host.names.of(Book.DOCKER, f"none{number}")
    assert len(host.names._known) == len(host.names._unknown) == 5


def test_who_asks_does_not_wait_for_the_disk_once_it_is_read_beside(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, threads = threading.Event(), []

    def slow(_root: str, keys: list[str]) -> list[tuple[str, str]]:
        threads.append(threading.current_thread().name)
        gate.wait(10)
        return [(key, "chat") for key in keys]

    monkeypatch.setitem(module._READERS, Book.DOCKER, slow)
    host.names.start()
    try:
        assert host.names.of(Book.DOCKER, ID) is None
        gate.set()
        wait_until(lambda: host.names.of(Book.DOCKER, ID) == "chat", 10, "the name is there")
    finally:
        gate.set()
        host.names.close()
    assert set(threads) == {"names"}


def test_the_thread_sleeps_while_nothing_is_looked_for(host: Host) -> None:
    assert host.names._pause_s() == 60
    host.names.of(Book.DOCKER, ID)
    assert host.names._pause_s() == 1
    for _ in range(100):
        host.now_s += 100
        host.names.poll()
    assert host.names._pause_s() == 60


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [
        (f"/system.slice/docker-{ID}.scope/init", "docker chat"),
        (f"/user.slice/{ID}", "docker chat"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman web"),
        (f"/kubepods/pod{UID}/{OTHER}", "pod ml/llama-0"),
        ("/system.slice/slurmstepd.scope/job_3385/step_0/user/task_0", "job 3385.0"),
        ("/slurm/uid_7/job_3385", "job 3385"),
        ("/slurm/uid_7", None),
        ("/lxc.payload.u1/system.slice/x.service", "lxc u1"),
        (r"/machine.slice/machine-qemu\x2d1\x2dvm.scope", "machine qemu-1-vm"),
        ("/system.slice/chat.service/worker", "unit chat.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "user alice"),
        ("/user.slice/user-1001.slice/session-3.scope", "user 1001"),
        (f"/system.slice/docker-{OTHER}.scope", None),
        ("/gpu.slice/chat", None),
        # who lives in one makes another's path below its own
        (f"/system.slice/docker-{OTHER}.scope/docker/{ID}", None),
        (f"/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope", "user alice"),
    ],
)
def test_what_a_cgroup_is_called(host: Host, cgroup: str, name: str | None) -> None:
    host.docker("/chat")
    host.podman("web")
    (host.root / f"var/log/pods/ml_llama-0_{UID}").mkdir(parents=True)
    host.write("etc/passwd", "alice:x:1000:1000::/:\n")
    assert known_as(cgroup, host.names) == name


def test_the_name_of_a_container_in_a_pod_is_that_of_the_pod(host: Host) -> None:
    host.docker("/chat")
    layers = layers_of(f"/kubepods/pod{UID}/docker-{ID}.scope")
    assert name_of(layers[-1], host.names) is None
