# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: what it comes to, that nothing beside it drifts, and that what is granted is what is asked for."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairsched.companion.pods.shares import ENV
from fairsched.config import from_bytes
from fairsched.k8s.plugin.service import Ways
from fairsched.k8s.plugin.settings import FILE, PluginSettings, parser, settings_of
from fairsched.k8s.pools.load import from_bytes as pools_from_bytes
from tests.unit.repo.tree import ROOT

CHART = ROOT / "packaging/helm/fairsched"
CASES = sorted((ROOT / "tests/unit/k8s/values").glob("*.yaml"))
UNIT = ROOT / "packaging/systemd/fairsched.service"


def load_render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", ROOT / "scripts/k8s/render.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render: Any = load_render()


@pytest.fixture
def helm() -> None:
    if render.helm() is None:
        pytest.skip("no helm: sudo make setup-k8s")


def documents(*options: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(render.template(*options)) if one]


def of_kind(kind: str, *options: str) -> dict[str, Any]:
    (found,) = [one for one in documents(*options) if one["kind"] == kind]
    return found


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def config_of(*options: str) -> bytes:
    (found,) = [one for one in documents(*options) if "config.yaml" in one.get("data", {})]
    return str(found["data"]["config.yaml"]).encode()


# ---- nothing drifts ----


def test_the_schema_is_the_configurations_own() -> None:
    """Without helm: whoever adds a key to the configuration runs scripts/k8s/render.py."""
    assert json.loads(render.SCHEMA.read_text()) == render.schema(), "python scripts/k8s/render.py"


@pytest.mark.usefixtures("helm")
def test_what_follows_from_the_chart_is_what_is_written() -> None:
    """The kustomize base and the golden files; --check names what differs."""
    differ = [path for path, text in render.files() if not path.exists() or path.read_text() != text]
    assert differ == [], "python scripts/k8s/render.py, and read the difference"


def test_every_file_of_values_has_what_comes_of_it() -> None:
    assert {one.name for one in CASES} == {one.name for one in (ROOT / "tests/unit/k8s/golden").iterdir()}


@pytest.mark.usefixtures("helm")
def test_helm_lint_finds_nothing_to_say_but_that_there_is_no_icon() -> None:
    said = render.run("lint", "--strict", "--kube-version", render.KUBERNETES, str(CHART))
    assert re.findall(r"\[(?!INFO)\w+\].*", said) == []


@pytest.mark.usefixtures("helm")
def test_rules_and_board_are_those_of_prometheus_and_grafana() -> None:
    on = ["--set", "prometheusRule.enabled=true,grafanaDashboard.enabled=true"]
    shipped = [
        yaml.safe_load((ROOT / f"packaging/prometheus/fairsched.{name}.yml").read_text())
        for name in ("rules", "alerts")
    ]
    groups = of_kind("PrometheusRule", *on)["spec"]["groups"]
    assert groups == [group for one in shipped for group in one["groups"]]
    (board,) = [one for one in documents(*on) if "fairsched.json" in one.get("data", {})]
    assert json.loads(board["data"]["fairsched.json"]) == json.loads(
        (ROOT / "packaging/grafana/fairsched.json").read_text()
    )


# ---- values ----


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_the_agents_take_the_configuration_that_is_written(values: Path) -> None:
    """Also its numbers, which helm may write in its own way."""
    given = yaml.safe_load(values.read_text())["config"]
    config = from_bytes(config_of("--values", str(values)), "config.yaml")
    assert config.mode == given["mode"]
    assert set(config.tenants) == set(given.get("tenants", {}))
    if "max_bytes" in given.get("history", {}):
        assert config.history.max_bytes == given["history"]["max_bytes"]


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("config.moed=enforce", "'moed' not allowed"),
        ("config.tenants.chat.wieght=3", "'wieght' not allowed"),
        ("config.tick_ms=1", "at '/config/tick_ms'"),
        ("updateStrategy.rollingUpdate.maxSurge=1", "at '/updateStrategy/rollingUpdate/maxSurge'"),
        ("devicePlugin.sharesPerGpu=0", "at '/devicePlugin/sharesPerGpu'"),
        ("devicePlugin.inject={mount}", "at '/devicePlugin/inject/0'"),
        ("devicePlugin.nvidiaCtk=nvidia-ctk", "at '/devicePlugin/nvidiaCtk'"),
        ("nodeSelektor.gpu=true", "'nodeSelektor' not allowed"),
        ("config.metrics.listen=null,serviceMonitor.enabled=true", "there is nothing to scrape"),
    ],
)
def test_helm_refuses_what_an_agent_would_refuse_and_says_where(value: str, said: str) -> None:
    with pytest.raises(render.RenderError, match=re.escape(said)):
        render.template("--set", value)


@pytest.mark.usefixtures("helm")
def test_another_configuration_is_another_pod_and_the_same_is_not() -> None:
    def told(*options: str) -> str:
        metadata = of_kind("DaemonSet", *options)["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["fairsched.io/config"])

    assert told() == told("--set", "podAnnotations.a=b")
    assert told() != told("--set", "config.mode=enforce")


# ---- what the agent may ----


@pytest.mark.usefixtures("helm")
def test_the_agent_has_the_capabilities_of_the_service_and_no_others() -> None:
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    security = pod_of(of_kind("DaemonSet"))["containers"][0]["securityContext"]
    assert {f"CAP_{name}" for name in security["capabilities"]["add"]} == set(line.split())
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["privileged"] is False and security["readOnlyRootFilesystem"] is True


@pytest.mark.usefixtures("helm")
def test_each_capability_and_each_directory_of_the_host_has_its_reason() -> None:
    """A comment behind a capability; before a volume."""
    lines = (CHART / "templates/daemonset.yaml").read_text().splitlines()
    added = [line for line in lines if re.match(r"\s+- [A-Z_]+( |$)", line)]
    assert len(added) == 10 and all(" # " in line for line in added)
    volumes = [number for number, line in enumerate(lines) if "hostPath:" in line]
    assert len(volumes) == 6
    assert all(lines[number - 2].strip().startswith("#") for number in volumes)


@pytest.mark.usefixtures("helm")
def test_who_asks_nothing_has_no_token_and_no_role() -> None:
    off = ["--set", "config.kubernetes.watch_pods=false"]
    kinds = {one["kind"] for one in documents(*off)}
    assert kinds == {"ServiceAccount", "ConfigMap", "Service", "DaemonSet"}
    assert pod_of(of_kind("DaemonSet", *off))["automountServiceAccountToken"] is False


@pytest.mark.usefixtures("helm")
def test_who_watches_pods_may_do_that_and_tell_of_it() -> None:
    """A live test compares it with what the API server was asked (tests/k8s/test_tenants.py)."""
    granted = {
        (verb, resource)
        for rule in of_kind("ClusterRole")["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    assert granted == {
        ("list", "pods"), ("watch", "pods"), ("list", "namespaces"), ("watch", "namespaces"), ("create", "events")
    }  # fmt: skip


@pytest.mark.usefixtures("helm")
def test_escalation_has_the_role_of_its_manifest() -> None:
    """Which another test compares with what escalation asks for."""
    manifest = ROOT / "packaging/kubernetes/escalation-rbac.yaml"
    (role,) = [one for one in yaml.safe_load_all(manifest.read_text()) if one["kind"] == "ClusterRole"]
    on = ["--set", "config.escalation.enabled=true,config.kubernetes.watch_pods=false"]
    assert of_kind("ClusterRole", *on)["rules"] == role["rules"]
    (subject,) = of_kind("ClusterRoleBinding", *on)["subjects"]
    account = of_kind("ServiceAccount", *on)["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod_of(of_kind("DaemonSet", *on))["automountServiceAccountToken"] is True


# ---- the device plugin ----

ON = ("--set", "devicePlugin.enabled=true")


def plugin(*options: str) -> dict[str, Any]:
    (found,) = [one for one in documents(*ON, *options) if one["metadata"]["name"].endswith("-device-plugin")]
    return found


@pytest.mark.usefixtures("helm")
def test_the_device_plugin_is_there_for_who_wants_it_and_has_no_right_that_it_needs_not() -> None:
    assert not any(one["metadata"]["name"].endswith("-device-plugin") for one in documents())
    pod = pod_of(plugin())
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True and pod["automountServiceAccountToken"] is False
    assert not any(pod.get(key) for key in ("hostPID", "hostNetwork", "hostIPC"))
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in pod["containers"][0]["volumeMounts"]}
    assert mounts == {
        "/var/lib/kubelet/device-plugins": False, "/var/lib/kubelet/pod-resources": True,
        "/run/fairsched-shares": False, "/var/run/cdi": False, "/tmp": False,
    }  # fmt: skip
    without = pod_of(plugin("--set", "devicePlugin.inject={env}"))["containers"][0]["volumeMounts"]
    assert "/var/run/cdi" not in {one["mountPath"] for one in without}


@pytest.mark.usefixtures("helm")
def test_each_directory_of_the_host_that_the_plugin_has_has_its_reason() -> None:
    lines = (CHART / "templates/device-plugin.yaml").read_text().splitlines()
    volumes = [number for number, line in enumerate(lines) if "hostPath:" in line]
    assert len(volumes) == 4 and all(lines[number - 2].strip().startswith("#") for number in volumes)


@pytest.mark.usefixtures("helm")
def test_no_pod_of_the_plugin_is_taken_for_an_agent() -> None:
    """By its Service, or its DaemonSet."""
    labels = plugin()["spec"]["template"]["metadata"]["labels"]
    agents = of_kind("Service", *ON)["spec"]["selector"]
    assert not agents.items() <= labels.items()
    assert plugin()["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("values", [None, ROOT / "tests/unit/k8s/values/shares.yaml"])
def test_the_plugin_understands_what_the_chart_tells_it(values: Path | None) -> None:
    container = pod_of(plugin(*(() if values is None else ("--values", str(values)))))["containers"][0]
    settings = settings_of(parser().parse_args(container["args"]))
    if values is None:
        assert settings == replace(PluginSettings(), places=settings.places) and settings.places.tool is None
    else:
        assert (settings.shares_per_gpu, settings.how, settings.unwell_xids) == (10, "spread", (48, 79))
        assert settings.ways == Ways(True, True, False) and settings.quiet_s == 1e6
        assert settings.plugins == Path("/data/kubelet/device-plugins")
    mounts = {Path(one["mountPath"]) for one in container["volumeMounts"]}
    assert {settings.plugins, settings.pod_resources.parent, settings.run, settings.places.cdi} <= mounts
    probe = container["livenessProbe"]["exec"]["command"]
    assert probe[:3] == ["python3", "-m", "fairsched.k8s.plugin"]
    told = parser().parse_args(probe[3:])
    assert told.health and told.plugin_dir == settings.plugins


@pytest.mark.usefixtures("helm")
def test_the_agent_reads_what_the_plugin_writes() -> None:
    (agent,) = [one for one in documents(*ON) if one["kind"] == "DaemonSet" and one != plugin()]
    container = pod_of(agent)["containers"][0]
    (file,) = [one["value"] for one in container["env"] if one["name"] == ENV]
    assert Path(file) == PluginSettings().run / FILE
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "shares"]
    assert mount["mountPath"] == str(PluginSettings().run) and mount["readOnly"] is True


@pytest.mark.usefixtures("helm")
def test_the_labeller_is_off_unless_asked_for_and_may_only_list_and_patch_nodes() -> None:
    """No agent is found by its labels, and its file is one that it takes."""
    assert "CronJob" not in {one["kind"] for one in documents()}
    on = ["--set", "pools.enabled=true", "--show-only", "templates/pools.yaml"]
    assert of_kind("ClusterRole", *on)["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]}
    ]
    template = of_kind("CronJob", *on)["spec"]["jobTemplate"]["spec"]["template"]
    agents = of_kind("DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not agents.items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert container["command"] == ["fairsched", "k8s", "label"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.usefixtures("helm")
def test_the_labellers_file_is_taken_as_helm_writes_it_and_refused_when_it_is_wrong() -> None:
    """Also its numbers: helm writes 1000000 as 1e+06."""
    on = ["--set", "pools.enabled=true", "--show-only", "templates/pools.yaml"]
    good = "pools.config.priority_classes.x.value=1000000,pools.config.pools.p.nodes.min_gpus=8"
    data = of_kind("ConfigMap", *on, "--set", good)["data"]["pools.yaml"]
    assert pools_from_bytes(data.encode(), "pools.yaml").priority_classes["x"].value == 1_000_000
    with pytest.raises(render.RenderError, match="'noeds' not allowed"):
        render.template(*on, "--set", "pools.config.pools.p.noeds.min_gpus=8")


# ---- its life ----


@pytest.mark.usefixtures("helm")
def test_two_agents_are_never_on_one_node() -> None:
    strategy = of_kind("DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.mark.usefixtures("helm")
def test_it_is_started_again_later_than_systemd_would() -> None:
    """A kubelet that asks too often, or is impatient, ends an agent that works, and holds with it."""
    found = pod_of(of_kind("DaemonSet"))["containers"][0]
    live, start = found["livenessProbe"], found["startupProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 30
    assert start["periodSeconds"] * start["failureThreshold"] >= 90, "TimeoutStartSec of the service"
    assert live["exec"] == start["exec"] == {"command": ["fairsched", "health", "--live"]}
    assert found["readinessProbe"]["exec"] == {"command": ["fairsched", "health"]}


@pytest.mark.usefixtures("helm")
def test_the_kustomize_base_is_the_chart_without_helm() -> None:
    found = list(yaml.safe_load_all((render.BASE / "fairsched.yaml").read_text()))
    assert [one["kind"] for one in found] == [one["kind"] for one in documents()]
    assert "Helm" not in (render.BASE / "fairsched.yaml").read_text()


# ---- policies ----

POLICIES = ["--set", "policies.enabled=true"]


def rules_of(kind: str, name: str) -> set[tuple[str, str]]:
    (role,) = [one for one in documents(*POLICIES) if one["kind"] == kind and one["metadata"]["name"] == name]
    return {
        (verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    }


@pytest.mark.usefixtures("helm")
def test_with_policies_the_agents_watch_them_and_may() -> None:
    assert from_bytes(config_of(*POLICIES), "config.yaml").kubernetes.watch_policies
    assert not from_bytes(config_of(), "config.yaml").kubernetes.watch_policies
    more = {("list", "gpusharepolicies"), ("watch", "gpusharepolicies")}
    assert rules_of("ClusterRole", "fairsched") - more == {
        ("list", "pods"), ("watch", "pods"), ("list", "namespaces"), ("watch", "namespaces"), ("create", "events")
    }  # fmt: skip


@pytest.mark.usefixtures("helm")
def test_the_controller_may_read_and_write_status_and_its_lease() -> None:
    """A live test compares it with what the API server was asked (tests/k8s/test_policies.py)."""
    assert rules_of("ClusterRole", "fairsched-policies") == {
        ("list", "gpusharepolicies"), ("watch", "gpusharepolicies"), ("patch", "gpusharepolicies/status"),
        ("list", "pods"), ("watch", "pods"), ("list", "namespaces"), ("watch", "namespaces"),
    }  # fmt: skip
    assert rules_of("Role", "fairsched-policies") == {
        ("get", "leases"),
        ("update", "leases"),
        ("create", "leases"),
    }


@pytest.mark.usefixtures("helm")
def test_the_controller_is_nobody_and_no_agent() -> None:
    found = of_kind("Deployment", *POLICIES)
    pod = pod_of(found)
    security = pod["containers"][0]["securityContext"]
    assert security["runAsNonRoot"] is True and security["capabilities"] == {"drop": ["ALL"]}
    assert "hostPID" not in pod and "volumes" not in pod
    labels = found["spec"]["template"]["metadata"]["labels"]
    selector = of_kind("DaemonSet", *POLICIES)["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items(), "the DaemonSet would count it as an agent"


@pytest.mark.usefixtures("helm")
def test_the_definition_outlives_the_release() -> None:
    found = of_kind("CustomResourceDefinition", *POLICIES)
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    shipped = yaml.safe_load((CHART / "files/gpusharepolicies.yaml").read_text())
    assert found["spec"] == shipped["spec"]
    assert "CustomResourceDefinition" not in {one["kind"] for one in documents()}


@pytest.mark.usefixtures("helm")
def test_policies_without_pods_are_refused() -> None:
    with pytest.raises(render.RenderError, match=re.escape("set config.kubernetes.watch_pods")):
        render.template(*POLICIES, "--set", "config.kubernetes.watch_pods=false")
