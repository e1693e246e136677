# SPDX-License-Identifier: Apache-2.0
"""Messages of the kubelet's gRPC interfaces, as far as fairsched uses them.

Problem. The kubelet speaks protocol buffers. Its own definitions come with options of a generator for Go, and with much
that nobody here asks for.

Approach. Each NAME.proto here is our own text of one interface: package, names and field numbers are those of the wire,
fields that nobody here uses are left out (a reader skips them). ``scripts/k8s/protos.py`` writes NAME_pb2.py and
NAME_pb2.pyi from it, and a test writes them anew and compares. There are no service stubs: the names of the calls are
with those who serve or make them, over ``fairsched.k8s.grpc_io``.

Needs the extra ``k8s``: import nothing from here where a node may be without Kubernetes.
"""
