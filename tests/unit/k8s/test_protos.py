# SPDX-License-Identifier: Apache-2.0
"""The messages in fairsched/k8s/proto: what is written follows from the .proto files, and is what the wire has."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from fairsched.k8s.proto import deviceplugin_pb2, dra_pb2, pluginregistration_pb2, podresources_pb2
from tests.unit.repo.tree import ROOT


def load_protos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protos", ROOT / "scripts/k8s/protos.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


protos: Any = load_protos()


def test_what_is_written_follows_from_the_protos() -> None:
    wanted = protos.files()
    differ = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    assert differ == [], "python scripts/k8s/protos.py"
    assert set(protos.PROTOS.glob("*_pb2.py*")) == set(wanted)


@pytest.mark.parametrize("path", sorted(protos.PROTOS.glob("*.proto")), ids=lambda path: path.stem)
def test_each_proto_has_messages_and_types(path: Any) -> None:
    assert {f"{path.stem}_pb2.py", f"{path.stem}_pb2.pyi"} <= {one.name for one in protos.files()}


def test_a_message_is_as_on_the_wire() -> None:
    """Bytes written out by hand from the kubelet's field numbers: tag = number << 3 | 2, length, text."""
    answer = deviceplugin_pb2.ContainerAllocateResponse(
        envs={"A": "b"}, cdi_devices=[deviceplugin_pb2.CDIDevice(name="v/c=d")]
    )
    assert answer.SerializeToString() == b"\x0a\x06\x0a\x01A\x12\x01b" + b"\x2a\x07\x0a\x05v/c=d"
    asked = deviceplugin_pb2.RegisterRequest(
        version="v1beta1",
        endpoint="e",
        resource_name="r",
        options=deviceplugin_pb2.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    assert asked.SerializeToString() == b"\x0a\x07v1beta1\x12\x01e\x1a\x01r\x22\x02\x10\x01"


def test_a_prepared_claim_is_as_on_the_wire() -> None:
    """A map is a list of pairs: key 1, value 2."""
    answer = dra_pb2.NodePrepareResourcesResponse()
    answer.claims["u"].devices.add(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"])
    device = b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c"
    value = b"\x0a" + bytes([len(device)]) + device
    pair = b"\x0a\x01u\x12" + bytes([len(value)]) + value
    assert answer.SerializeToString() == b"\x0a" + bytes([len(pair)]) + pair
    info = pluginregistration_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"


def test_what_is_left_out_is_skipped() -> None:
    """CPUs of a container, field 3, packed."""
    read = podresources_pb2.ContainerResources.FromString(
        b"\x0a\x01c" + b"\x1a\x02\x01\x02" + b"\x12\x06\x0a\x01r\x12\x01d"
    )
    assert (read.name, read.devices[0].resource_name, list(read.devices[0].device_ids)) == ("c", "r", ["d"])


def test_services_have_the_kubelets_names() -> None:
    assert {
        f"{service.full_name}/{method.name}"
        for module in (deviceplugin_pb2, podresources_pb2, pluginregistration_pb2, dra_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    } == {
        "v1beta1.Registration/Register",
        "v1beta1.DevicePlugin/GetDevicePluginOptions",
        "v1beta1.DevicePlugin/ListAndWatch",
        "v1beta1.DevicePlugin/GetPreferredAllocation",
        "v1beta1.DevicePlugin/Allocate",
        "v1beta1.DevicePlugin/PreStartContainer",
        "v1.PodResourcesLister/List",
        "v1.PodResourcesLister/GetAllocatableResources",
        "pluginregistration.Registration/GetInfo",
        "pluginregistration.Registration/NotifyRegistrationStatus",
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    }


def test_nothing_of_grpc_is_imported_by_a_node_without_kubernetes() -> None:
    code = (
        "import sys, fairsched.cli, fairsched.daemon.loop, fairsched.companion.part, fairsched.companion.pods.part;"
        "print([name for name in sys.modules if name.split('.')[0] == 'grpc' or name.startswith('google.protobuf')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
