# SPDX-License-Identifier: Apache-2.0
"""What the programs of a node are told: containerd, its network, and the kubelet; and how a node's namespace is made.

The node has a mount and a network namespace of its own. In it /run, /var/lib and /var/log are its own and have their
usual paths, so that whoever looks for a node's files (fairsched, a device plugin) finds them.
Nothing that the kubelet or a plugin changes there (sysctls of the network, routes, mounts) reaches the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.k8s.places import BIN, IMAGE, IS_SYSTEMD, SLOWER

ADDRESS = "10.99.0.1"
API_PORT = 6443
SOCKET = "/run/containerd/containerd.sock"
RECORDED_SPACES = ("fairsched", "pool-ml")
"""Where the chart is, and the labeller of test_pools.py."""
RECORDED_USERS = ("system:serviceaccount:kube-system:fairsched-escalation", "kubectl-user")
GATES = {"DRAConsumableCapacity": True}
"""Alpha in 1.34: a GPU is given to several claims, each of which consumes a part (test_dra.py)."""

NAMESPACE = r"""
set -e
ip link set lo up
ip link add eth0 type veth peer name eth0-peer
ip addr add {address}/24 dev eth0
ip link set eth0 up; ip link set eth0-peer up
ip route add default via 10.99.0.254
mkdir -p {top}/lib/up {top}/lib/work {top}/containerd {top}/kubelet {top}/log/pods {top}/log/containers
mkdir -p {top}/sysctl {top}/run
mount -t tmpfs -o mode=755 tmpfs {top}/run
for one in systemd dbus; do  # of a host whose systemd is asked for cgroups
    [ ! -d /run/$one ] || {{ mkdir {top}/run/$one && mount --rbind /run/$one {top}/run/$one; }}
done
mount -n --move {top}/run /run
mount -t overlay overlay -o lowerdir=/var/lib,upperdir={top}/lib/up,workdir={top}/lib/work /var/lib
mkdir -p /var/lib/containerd /var/lib/kubelet
{disk}
mount --bind {top}/containerd /var/lib/containerd
mount --bind {top}/kubelet /var/lib/kubelet
mount --bind {top}/log /var/log
# The kubelet sets these for the whole host; what it writes here changes nothing.
echo 1 >{top}/sysctl/overcommit_memory; echo 10 >{top}/sysctl/panic; echo 1 >{top}/sysctl/panic_on_oops
mount --bind {top}/sysctl/overcommit_memory /proc/sys/vm/overcommit_memory
mount --bind {top}/sysctl/panic /proc/sys/kernel/panic
mount --bind {top}/sysctl/panic_on_oops /proc/sys/kernel/panic_on_oops
mount --make-rshared /
echo ready
exec sleep infinity
"""


def gates(are_on: bool = True) -> str:
    """An option of the control plane's programs."""
    return "--feature-gates=" + ",".join(f"{name}={str(are_on).lower()}" for name in GATES)


def containerd(directory: Path) -> str:
    """containerd's configuration. This host may have no CAP_SYS_RESOURCE: nobody's oom_score_adj can be lowered."""
    cri = "plugins.'io.containerd.cri.v1"
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[{cri}.images']
  snapshotter = "overlayfs"
  [{cri}.images'.pinned_images]
    sandbox = "{IMAGE}"
[{cri}.runtime']
  restrict_oom_score_adj = true
  [{cri}.runtime'.cni]
    bin_dirs = ["{BIN}"]
    conf_dir = "{directory}/cni"
  [{cri}.runtime'.containerd]
    default_runtime_name = "runc"
    [{cri}.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{BIN}/runc"
        SystemdCgroup = {str(IS_SYSTEMD).lower()}
"""


def network() -> dict[str, Any]:
    """A link of its own for each pod, and the way to the node, where the API server is."""
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "ptp", "ipam": ipam}]}


def audit() -> dict[str, Any]:
    """What the API server keeps a record of: what programs and people of ours ask (rights.py)."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{one}" for one in RECORDED_SPACES]},
            {"level": "Metadata", "users": list(RECORDED_USERS)},
            {"level": "None"},
        ],
    }


def kubelet(directory: Path) -> dict[str, Any]:
    """The kubelet's configuration. cgroup v1 is told to be welcome, as it is by default until 1.34."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{directory}/certificates/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{directory}/certificates/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{directory}/certificates/kubelet-server.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "featureGates": GATES,
        "cgroupDriver": "systemd" if IS_SYSTEMD else "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s" if SLOWER == 1 else "10s",
        "syncFrequency": "5s",
        "resolvConf": "",
    }
