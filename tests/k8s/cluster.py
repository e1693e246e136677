# SPDX-License-Identifier: Apache-2.0
"""One real Kubernetes for a run of tests: etcd, the control plane, containerd and a kubelet; nothing of it is left.

    with Cluster() as cluster:
        cluster.apply(document)
        cluster.kubectl("get", "pods")

Approach. All files are in one temporary directory. Programs run in a mount and a network namespace of their own
(settings.py), so that ports, routes and mounts collide with nobody's and go with it. They are in a cgroup of their own,
pods in /kubepods: in the end both are killed as cgroups, with whatever containerd's shims have left, and removed from
every hierarchy. The next run tidies up after one that was killed, whose cgroup names a process that is gone.

One at a time, and none where another kubelet has its /kubepods: that is nobody's to end.
Errors: ClusterError, with the end of the log that says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tests.k8s import settings
from tests.k8s.api import Api, ApiError
from tests.k8s.certificates import Authority
from tests.k8s.places import BIN, CACHE, CGROUPS, DISK, HAS_DISK, IS_SYSTEMD, SLOWER, UNIFIED, write_image
from tests.support import let_run, wait_until

NODE = "node1"
PODS = "kubepods.slice" if IS_SYSTEMD else "kubepods"
PREFIX = "fairsched-k8s."
PACE_S = 0.5
"""Between two questions of a guest's: without it they took half of one of its two processors."""
READY_S = 90.0 * SLOWER
END_S = 20.0 * SLOWER


class ClusterError(Exception):
    """A part of the cluster did not come up, or a command failed."""


class Cluster:
    """A context manager."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}."))
        self.cgroup = UNIFIED / f"{PREFIX}{os.getpid()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.took_s: dict[str, float] = {}
        self._starts: list[tuple[float, float]] = []
        """Of the API server: begun, and ready."""
        self._undo = contextlib.ExitStack()
        self._undo.callback(shutil.rmtree, self.directory, ignore_errors=True)

    def __enter__(self) -> Cluster:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything. May be called twice."""
        self._undo.close()

    # ---- its start ----

    def _open(self) -> None:
        self._lock()
        sweep()
        if theirs := pod_trees():
            raise ClusterError(f"{theirs[0]} is there: another kubelet runs on this host, end it first")
        self.cgroup.mkdir()
        self._undo.callback(sweep, os.getpid())
        started = time.monotonic()
        self._hold_namespace()
        self._certify()
        self._start_control_plane()
        self.took_s["api"] = time.monotonic() - started
        self._start_node()
        self.took_s["node"] = time.monotonic() - started

    def _lock(self) -> None:
        lock = os.open(CACHE / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)

    def _hold_namespace(self) -> None:
        disk = f"mount {DISK} {self.directory}/containerd" if HAS_DISK else ""
        script = settings.NAMESPACE.format(top=self.directory, address=settings.ADDRESS, disk=disk)
        command = ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", script]
        with open(self.directory / "namespace.log", "wb") as log:
            holder = subprocess.Popen(self._enter(command), stdout=log, stderr=log, start_new_session=True)
        self.processes["namespace"] = holder
        self._wait("namespace", lambda: "ready" in self.log("namespace"), "its namespaces are made")

    def _certify(self) -> None:
        address = settings.ADDRESS
        self.authority = Authority(self.directory / "certificates", f"https://{address}:{settings.API_PORT}")
        issue, conf = self.authority.issue, self.authority.kubeconfig
        issue(
            "apiserver", "kube-apiserver", addresses=f"IP:{address},IP:10.96.0.1,DNS:kubernetes.default.svc"
        )
        issue("apiserver-client", "kube-apiserver-kubelet-client", "system:masters")
        issue("kubelet-server", f"system:node:{NODE}", "system:nodes", f"IP:{address},DNS:{NODE}")
        self.kubeconfig = conf("admin", "admin", "system:masters")
        self.api = Api(self.kubeconfig, self.processes["namespace"].pid)
        conf("controllers", "system:kube-controller-manager")
        conf("scheduler", "system:kube-scheduler")
        conf("kubelet", f"system:node:{NODE}", "system:nodes")

    def _start_control_plane(self) -> None:
        top = self.directory
        self.run("etcd", "--data-dir", f"{top}/etcd", "--unsafe-no-fsync", "--log-level", "warn")
        (top / "audit.yaml").write_text(yaml.safe_dump(settings.audit()))
        self.start_api_server()
        self._start_controllers()

    def _start_controllers(self) -> None:
        authority = self.authority
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={authority.directory}/controllers.conf",
            f"--service-account-private-key-file={authority.key('accounts')}",
            f"--root-ca-file={authority.certificate('ca')}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            settings.gates(),
        )
        self.run(
            "kube-scheduler",
            f"--kubeconfig={authority.directory}/scheduler.conf",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            settings.gates(),
        )

    def start_api_server(self, *, has_gates: bool = True) -> None:
        """Also again, after :meth:`stop`: what it knows is etcd's. ``has_gates``: whether those of settings are on."""
        began = time.time()
        top, authority, client = self.directory, self.authority, "apiserver-client"
        self.run(
            "kube-apiserver",
            settings.gates(has_gates),
            f"--audit-policy-file={top}/audit.yaml",
            f"--audit-log-path={top}/audit.log",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={settings.ADDRESS}",
            f"--secure-port={settings.API_PORT}",
            f"--tls-cert-file={authority.certificate('apiserver')}",
            f"--tls-private-key-file={authority.key('apiserver')}",
            f"--client-ca-file={authority.certificate('ca')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={authority.key('accounts')}",
            f"--service-account-signing-key-file={authority.key('accounts')}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            f"--kubelet-certificate-authority={authority.certificate('ca')}",
            f"--kubelet-client-certificate={authority.certificate(client)}",
            f"--kubelet-client-key={authority.key(client)}",
            "--kubelet-preferred-address-types=InternalIP",  # no name server is there to ask for its name
        )
        self._wait("kube-apiserver", self.is_api_ready, "the API server is ready")
        self._starts.append((began, time.time()))

    def restart_those_who_waited(self) -> None:
        """After an outage of the API server: the programs of Kubernetes wait for it ever longer, up to a minute, of
        which no test is. Agents find it themselves."""
        for program in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self.stop(program)
        self._start_controllers()
        self.start_kubelet()

    def _start_node(self) -> None:
        top = self.directory
        (top / "cni").mkdir()
        (top / "cni/10-test.conflist").write_text(json.dumps(settings.network()))
        (top / "containerd.toml").write_text(settings.containerd(top))
        (top / "kubelet.yaml").write_text(yaml.safe_dump(settings.kubelet(top)))
        self.run("containerd", "--config", f"{top}/containerd.toml")
        self._wait("containerd", lambda: self._ctr("version"), "containerd answers")
        if not HAS_DISK:
            write_image(top / "busybox.tar")
            self.import_image(top / "busybox.tar")
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Also again, after :meth:`stop`: pods are containerd's meanwhile."""
        self.run(
            "kubelet",
            f"--config={self.directory}/kubelet.yaml",
            f"--kubeconfig={self.authority.directory}/kubelet.conf",
            f"--hostname-override={NODE}",
            f"--node-ip={settings.ADDRESS}",
        )
        self._wait("kubelet", self.is_node_ready, "the node is ready")

    def forget_devices(self) -> None:
        """The kubelet knows of no device plugin any more, as one that has never seen any."""
        self.stop("kubelet")
        (self.directory / "kubelet/device-plugins/kubelet_internal_checkpoint").unlink(missing_ok=True)
        self.start_kubelet()

    # ---- processes ----

    def _enter(self, command: Sequence[str]) -> list[str]:
        """In our cgroup from its first moment on."""
        return ["bash", "-c", f'echo $$ >{self.cgroup}/cgroup.procs && exec "$@"', "_", *command]

    def inside(self, *command: str) -> list[str]:
        """What runs ``command`` as on the node: in its namespaces, with the host's processes and cgroups."""
        return [
            str(shutil.which("nsenter")),
            "-t",
            str(self.processes["namespace"].pid),
            "-m",
            "-n",
            "--",
            *command,
        ]

    def run(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None, path: Path | None = None
    ) -> None:
        """Starts a program of the cluster, or another, on the node; its log is PROGRAM.log."""
        file = path or BIN / program
        search = f"{BIN}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
        with open(self.directory / f"{program}.log", "ab") as log:
            self.processes[program] = subprocess.Popen(
                self._enter(self.inside(str(file), *arguments)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "PATH": search, **(env or {})},
                start_new_session=True,
            )

    def stop(self, program: str) -> None:
        """End a program of the cluster, whatever it does."""
        process = self.processes[program]
        process.kill()
        process.wait()

    def audited(self) -> list[dict[str, Any]]:
        """What was asked by those whom settings.py names.

        But for what was asked of a server that was not ready: it refuses what it has not read the rights for yet.
        """
        path = self.directory / "audit.log"
        record = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [one for one in record if not self._is_of_a_start(one)]

    def _is_of_a_start(self, record: Mapping[str, Any]) -> bool:
        at = datetime.fromisoformat(record["requestReceivedTimestamp"]).timestamp()
        return any(began <= at <= ready for began, ready in self._starts)

    def log(self, program: str) -> str:
        path = self.directory / f"{program}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tail(self, program: str, lines: int = 15) -> str:
        return "\n".join(self.log(program).splitlines()[-lines:])

    def _wait(self, program: str, condition: Any, claim: str) -> None:
        def is_so() -> bool:
            status = self.processes[program].poll()
            if status is not None:
                raise ClusterError(f"{program} ended with {status}:\n{self.log_tail(program)}")
            return bool(condition())

        try:
            wait_until(is_so, READY_S, claim)
        except AssertionError as error:
            raise ClusterError(f"{error}; {program} says:\n{self.log_tail(program)}") from error

    # ---- questions ----

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """What kubectl printed, as the administrator. Raises ClusterError."""
        command = self.inside(str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments)
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s * SLOWER
        )
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def answers(self, *arguments: str) -> bool:
        try:
            self.kubectl(*arguments)
        except (ClusterError, subprocess.TimeoutExpired):
            return False
        return True

    def _ctr(self, *arguments: str) -> bool:
        command = self.inside(str(BIN / "ctr"), "-a", settings.SOCKET, "-n", "k8s.io", *arguments)
        return subprocess.run(command, capture_output=True, timeout=60 * SLOWER).returncode == 0

    def import_image(self, archive: Path) -> None:
        """Give the node what `docker save` or its like has written."""
        if not self._ctr("images", "import", str(archive)):
            raise ClusterError(f"{archive.name} was not imported:\n{self.log_tail('containerd')}")

    def apply(self, *documents: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(one) for one in documents]))

    def text(self, path: str) -> str:
        """What the API server says there. Raises ClusterError."""
        try:
            return self.api.text(path)
        except ApiError as error:
            raise ClusterError(str(error)) from error

    def get(self, *what: str) -> dict[str, Any]:
        """``get("pod", "chat", "-n", "ml")``: the object. Raises ClusterError."""
        if SLOWER > 1:
            let_run(PACE_S)
        try:
            return self.api.get(*what)
        except ApiError as error:
            raise ClusterError(str(error)) from error

    def has(self, *what: str) -> bool:
        """Whether there is such an object, and a server that says so."""
        try:
            self.get(*what)
        except ClusterError:
            return False
        return True

    def is_api_ready(self) -> bool:
        try:
            return self.text("/readyz") == "ok"
        except ClusterError:
            return False

    def is_node_ready(self) -> bool:
        try:
            conditions = self.get("node", NODE)["status"].get("conditions", [])
        except ClusterError:
            return False
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def phase(self, name: str, namespace: str = "default") -> str:
        return str(self.get("pod", name, "-n", namespace)["status"].get("phase"))


# ---- the end ----


def sweep(own: int | None = None) -> None:
    """Kills and removes what a cluster has left: the one of process ``own``, or those whose process is gone."""
    ours = [top for top in UNIFIED.glob(f"{PREFIX}*") if _is_over(top.name, own)]
    for top in ours:
        (top / "cgroup.kill").write_text("1")
    if ours:  # else /kubepods is somebody else's
        for file in (file for tree in pod_trees() for file in tree.rglob("cgroup.procs")):
            for pid in _pids(file):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if IS_SYSTEMD:  # else it would keep the slices
            subprocess.run(["systemctl", "stop", PODS], check=True)
        _empty([*pod_trees(), *ours])
    if own is None:
        for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if _is_over(directory.name):
                shutil.rmtree(directory, ignore_errors=True)


def pod_trees() -> list[Path]:
    """The kubelet's cgroup in each hierarchy where there is one."""
    roots = [CGROUPS] if UNIFIED == CGROUPS else CGROUPS.iterdir()
    return [root / PODS for root in roots if (root / PODS).is_dir()]


def _is_over(name: str, own: int | None = None) -> bool:
    """Whether a cgroup or directory of ours is that of process ``own``, or of one that is gone."""
    pid = int(name.removeprefix(PREFIX).partition(".")[0])
    return pid == own or not Path(f"/proc/{pid}").exists()


def _pids(file: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in file.read_text().split()]
    return []


def _empty(tops: Sequence[Path]) -> None:
    """Removes these cgroups with all below, as soon as the last process has left."""

    def is_gone() -> bool:
        for top in tops:
            inner = sorted((one for one in top.rglob("*") if one.is_dir()), key=lambda one: -len(one.parts))
            for one in (*inner, top):
                with contextlib.suppress(OSError):
                    one.rmdir()
        return not any(top.exists() for top in tops)

    wait_until(is_gone, END_S, f"the cgroups of the cluster are gone: {', '.join(map(str, tops))}")
