# SPDX-License-Identifier: Apache-2.0
"""Kubernetes: what fairsched says to its API server and to the kubelet, and what it makes of the answers.

Problem. Shares have to be where the pods are: said in objects of the cluster, given out by its scheduler, and known on
each node. Nothing of that may be needed on a node without Kubernetes.

Approach. One client (client.py, over https.py, with what kubeconfig.py finds), one way to keep a list current
(watch.py). What runs on a node beside the daemon speaks to the kubelet by gRPC (extra ``k8s``; messages in proto/);
what a person runs is ``fairsched k8s`` (cli/k8s). Tenants of pods are made in companion/pods.

Errors: client.Refused, client.Unreachable, errors.ConfigError.
"""
