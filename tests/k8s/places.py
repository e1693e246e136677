# SPDX-License-Identifier: Apache-2.0
"""Where the programs of the cluster lie, what keeps a host from running them, and the images that the pods run.

No registry of images is reached: an image is a tar of one layer made of Debian's static busybox, and imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

CACHE = Path(os.environ.get("FAIRSCHED_K8S_CACHE", "/var/cache/fairsched-k8s"))
BIN = CACHE / "bin"
BUSYBOX = Path("/bin/busybox")
IMAGE = "fairsched.test/busybox:1"
APPLETS = ("sh", "sleep", "cat", "echo", "ls", "mkdir", "env", "true")
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
NODE = ("containerd", "ctr", "containerd-shim-runc-v2", "runc", "ptp", "host-local", "loopback")
TOOLS = ("openssl", "nsenter", "unshare", "ip")
CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = CGROUPS if (CGROUPS / "cgroup.procs").exists() else CGROUPS / "unified"
"""Where cgroup v2 is mounted: alone, or beside the hierarchies of v1."""
SLOWER = 5.0 if os.environ.get("FAIRSCHED_VM") else 1.0
"""How much more patience a guest wants, whose processors are emulated."""
DISK = Path("/dev/vda")
"""Of a guest: containerd's files with the images (disk.py)."""
HAS_DISK = SLOWER > 1 and DISK.is_block_device()
IS_SYSTEMD = UNIFIED == CGROUPS and Path("/run/systemd/system").is_dir()
"""Whether the kubelet and runc ask systemd for their cgroups (the driver ``systemd``), or make them (``cgroupfs``)."""


def why_not() -> str | None:
    """What keeps the cluster from running here, and the remedy; None when nothing does."""
    if os.geteuid() != 0:
        return "needs root: sudo make test-k8s"
    missing = [name for name in (*NEEDED, *NODE) if not (BIN / name).exists()]
    if missing:
        return f"{', '.join(missing)} not built: sudo make setup-k8s"
    if not BUSYBOX.exists():
        return "no static busybox: apt-get install busybox-static"
    if absent := [name for name in TOOLS if shutil.which(name) is None]:
        return f"{', '.join(absent)} not installed: apt-get install openssl util-linux iproute2"
    if not (UNIFIED / "cgroup.procs").exists():
        return "host: no cgroup v2, alone or beside v1"
    return None


def write_image(path: Path, name: str = IMAGE) -> None:
    """An image archive with busybox and its applets."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(BUSYBOX, arcname="bin/busybox")
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/sh", "-c", "while :; do sleep 3600; done"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name_of_config = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name_of_config, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    files = {
        name_of_config: config,
        f"{digest}/layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
