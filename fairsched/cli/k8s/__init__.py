# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s``: what a person does with a cluster. One command a file, imported when it is used.

Nothing here talks to a daemon: commands speak to the API server, with the rights of who runs them.
"""

from __future__ import annotations

import click

from fairsched.cli.lazy import LazyGroup

COMMANDS = {
    "label": ("fairsched.cli.k8s.label", "Label nodes by the GPUs that they have."),
    "plan": ("fairsched.cli.k8s.plan", "Say in words what 'apply' would change."),
    "diff": ("fairsched.cli.k8s.diff", "The same as a diff; exits as kubectl diff does."),
    "apply": ("fairsched.cli.k8s.apply", "Make the cluster as a file of node pools says."),
    "backup": ("fairsched.cli.k8s.backup", "Save labels, taints, quotas, limits, priorities."),
    "restore": ("fairsched.cli.k8s.restore", "Put back what was ours as a backup has it."),
    "doctor": ("fairsched.cli.k8s.doctor", "Why GPU pods wait; what is wrong with GPU nodes."),
    "controller": ("fairsched.cli.k8s.controller", "Write whom policies reach into their status."),
    "teams": ("fairsched.cli.k8s.teams", "Keep the weights of Kueue's teams on every node."),
}
"""Command: module (its ``command``) and the line in ``fairsched k8s --help``."""


EPILOG = """\b
Examples:
  fairsched k8s plan -f pools.yaml      what would change, in words
  fairsched k8s backup -o before.json   before the first change
  fairsched k8s apply -f pools.yaml
  fairsched k8s restore before.json     and back
  fairsched k8s doctor                  why does that pod wait?
  fairsched k8s controller --namespace fairsched"""


@click.group("k8s", cls=LazyGroup, table=COMMANDS, epilog=EPILOG)
def command() -> None:
    """Node pools and trouble of a Kubernetes cluster.

    The cluster is that of --kubeconfig, $KUBECONFIG or ~/.kube/config; in a pod
    that of its service account.
    """
