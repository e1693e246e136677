# SPDX-License-Identifier: Apache-2.0
"""The part of docs/configuration.md on tenants by name: what each runtime makes, and the line that matches it.

A test matches each line with the cgroup beside it.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table."""

    made_by: str
    cgroup: str
    """With ID and UID in the places of a container's id and a pod's uid."""
    line: str
    """Of YAML, below a tenant."""


_BURSTABLE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice"
_USER = "/user.slice/user-1000.slice/user@1000.service"
ROWS = (
    Row("docker, systemd driver", "/system.slice/docker-ID.scope", "match: {docker: chat}"),
    Row("docker, cgroupfs driver", "/docker/ID", 'match: {docker: "chat*"}'),
    Row("docker, `--cgroup-parent`", "/batch.slice/docker-ID.scope", "match: {docker: [chat, web]}"),
    Row("podman of root", "/machine.slice/libpod-ID.scope/container", "match: {podman: chat}"),
    Row(
        "podman of root, in a pod of podman",
        "/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope",
        "match: {podman: chat}",
    ),
    Row(
        "podman of root, by Quadlet (`--cgroups=split`)",
        "/system.slice/chat.service/libpod-payload-ID",
        "match: {unit: chat.service}",
    ),
    Row("podman or docker of a user", f"{_USER}/user.slice/libpod-ID.scope", "match: {user: alice}"),
    Row("nerdctl", "/system.slice/nerdctl-ID.scope", "match: {containerd: chat}"),
    Row("containerd's `ctr`", "/default/chat", "match: {containerd: chat}"),
    Row(
        "Kubernetes, systemd driver, containerd",
        f"{_BURSTABLE}/cri-containerd-ID.scope",
        "match: {pod: ml/llama-0}",
    ),
    Row(
        "Kubernetes, systemd driver, CRI-O",
        "/kubepods.slice/kubepods-podUID.slice/crio-ID.scope",
        'match: {pod: "ml/*"}',
    ),
    Row(
        "Kubernetes, cgroupfs driver, any runtime",
        "/kubepods/besteffort/podUID/ID",
        'match: {pod: "*/llama-?"}',
    ),
    Row(
        "Kubernetes, systemd driver, `cgroupRoot: /kubelet` (kind)",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID.slice/cri-containerd-ID.scope",
        "match: {pod: ml/llama-0}",
    ),
    Row(
        "Kubernetes, cgroupfs driver, `cgroupRoot: /kubelet`",
        "/kubelet/kubepods/burstable/podUID/ID",
        "match: {pod: ml/llama-0}",
    ),
    Row(
        "Kubernetes, drivers that differ",
        "/system.slice/containerd.service/kubepods-podUID.slice:cri-containerd:ID",
        "match: {pod: ml/llama-0}",
    ),
    Row(
        "Slurm, cgroup v2",
        "/system.slice/slurmstepd.scope/job_3385/step_0/user/task_0",
        "match: {slurm_job: 3385}",
    ),
    Row("Slurm, cgroup v1", "/slurm/uid_1000/job_3385/step_0/task_0", "match: {slurm_user: alice}"),
    Row(
        "Slurm, cgroup v1",
        "/slurm/uid_1000/job_3385/step_0/task_0",
        'match: {slurm_user: 1000, slurm_job: "33*"}',
    ),
    Row("LXC, LXD, Incus", "/lxc.payload.web", "match: {lxc: web}"),
    Row("LXC before 3.1", "/lxc/web", 'match: {lxc: "w*"}'),
    Row("systemd, a service", "/system.slice/chat.service/worker", "match: {unit: chat.service}"),
    Row(
        "systemd, an instance",
        "/system.slice/system-llm.slice/llm@7.service",
        'match: {unit: "llm@*.service"}',
    ),
    Row(
        "systemd-nspawn, libvirt",
        r"/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt",
        'match: {unit: "machine-qemu*.scope"}',
    ),
    Row("a user's session", "/user.slice/user-1000.slice/session-3.scope", "match: {user: 1000}"),
    Row(
        "a user's own service", f"{_USER}/app.slice/chat.service", "match: {user: alice, unit: chat.service}"
    ),
)

_TEXT = """\
## Containers, pods, jobs, units and users

The path of a container has an id in it that is new at each start, that of a pod a uid: no pattern of paths finds
them by name. `match` does. Below, ID is a container's id of 64 hexadecimal digits, UID that of a pod; each line of
YAML belongs below a tenant and matches the cgroup before it.

<!-- match -->

{table}

<!-- match: end -->

What is held is the whole container, pod, job, unit or user slice. Where several tenants claim cgroups that lie
inside of each other, the outermost decides; of one and the same, a path in `cgroup`, then a name, then an id.
Only what the host made is matched: a container, a unit or a user may make any cgroup below its own, also one
with the id of another's container, and stays what it is. So a container in a container belongs to the outer one.
Process 1 is never matched. Who may make cgroups outside of all these, in a slice that was given to it by hand, could
make one with another's id there: own such a slice by its path in `cgroup`.

Names come from files, never from a runtime's socket: docker's `config.v2.json` (below the `data-root` of
`/etc/docker/daemon.json`), podman's `containers.json` below `/var/lib/containers/storage/overlay-containers`,
nerdctl's `names` below `/var/lib/nerdctl`, the directories of `/var/log/pods`, and `/etc/passwd`. They are read
beside the loop; a container belongs to nobody until its name is there, as a rule less than a second, and keeps the
name that it had then: one that is renamed is found by its new name after the daemon's next start. An id without a
name is looked for some six minutes, and again after a reload. Where fairsched runs in a container, it needs these
files at their own places.

What cannot be known so:

- of a Slurm job its account, partition and name, and its user where the path has no `uid_N` (cgroup v2), so that
  `slurm_user` matches nothing there; from Slurm 26.05 on its number, unless `CgroupJobIdPaths` is set (else a SLUID)
- names of users that are not in `/etc/passwd` (LDAP): write the number
- names of rootless containers, which are their user's, and of CRI-O's containers that are in no pod
- podman's names where its storage is elsewhere: match the id
"""


def by_name() -> str:
    """The section, in Markdown."""
    lines = [
        "| Made by | Its cgroup (v2; the same below each hierarchy of v1) | In the configuration |",
        "|---|---|---|",
    ]
    lines += [f"| {row.made_by} | `{row.cgroup}` | `{row.line}` |" for row in ROWS]
    return _TEXT.replace("{table}", "\n".join(lines)).rstrip()
