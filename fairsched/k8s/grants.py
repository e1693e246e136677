# SPDX-License-Identifier: Apache-2.0
"""What grants the rights that are missing, by who asks: the remedy of a call that RBAC forbids."""

_CHART = "packaging/helm/fairsched/templates"

AGENT = f"grant it: {_CHART}/rbac.yaml (config.kubernetes.watch_pods)"
DRA = f"grant it: {_CHART}/dra.yaml (dra.enabled)"
DOCTOR = "ask for list of nodes and pods: docs/kubectl.md"
ESCALATION = "grant it: packaging/kubernetes/escalation-rbac.yaml"
KUBECTL = "ask for packaging/kubernetes/kubectl-rbac.yaml: list of pods, get of pods/proxy"
POLICIES = f"grant it: {_CHART}/policies.yaml (policies.enabled)"
POOLS = "ask for the rights that docs/kubernetes-pools.md lists"
TEAMS = f"grant it: {_CHART}/teams.yaml (teams.enabled)"
