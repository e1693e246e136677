# SPDX-License-Identifier: Apache-2.0
"""The pod watch as a part of the companion: its watches, and a thread that tells the daemon what they came to.

Nothing waits for anybody: the watches have threads of their own, and so have who asks the daemon and who makes Events.
What ``take`` does is to say what is in the way. Until all lists were seen once the daemon is told nothing: it has the
layer of before, from its file. Policies are watched where the configuration says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairsched.companion.part import Finding, Moment, Node
from fairsched.companion.pods import events
from fairsched.companion.pods import shares as shares_file
from fairsched.companion.pods.asked import Source, joined
from fairsched.companion.pods.policy import Base, Given, make_layer
from fairsched.companion.pods.said import PREFIX, Complaint
from fairsched.companion.pods.shares import SharesFile
from fairsched.config import Config, from_bytes
from fairsched.config.podlayer import Layer, fitting
from fairsched.errors import ControlError
from fairsched.k8s import grants, kubeconfig
from fairsched.k8s.client import KubeClient
from fairsched.k8s.nodename import node_name
from fairsched.k8s.objects import LIVING
from fairsched.k8s.policies.watch import Client, PolicyWatch
from fairsched.k8s.teams.placed import teams_on
from fairsched.k8s.watch import SHORT_AWAY_S, Watch

_AGAIN_S = 5.0
"""When the daemon did not take it."""
_LOOK_S = 60.0
"""The file may have changed meanwhile, and with it what fits."""
_SHARES_S = 1.0
"""Between two looks at the file of shares; what changes there is to be in effect within two."""
_PAUSE_S = 0.2
"""From one look to the next: who may make pods decides how often they change."""
_MOST_FAULTS = 6

logger = logging.getLogger(__name__)


class Api(Client, events.Api, Protocol):
    """The API server."""


class PodPart:
    """See companion.part.Part."""

    name = "pods"
    interval_s = 1.0
    wants_decisions = False

    def __init__(
        self,
        node: Node,
        api: Api,
        node_name: str,
        shares: SharesFile | None = None,
        sources: Sequence[Source] = (),
        *,
        has_policies: bool = False,
    ) -> None:
        """``sources``: of what pods have by claims; call :meth:`wake` when one says something else."""
        self._node, self._sources = node, sources
        self.events = events.Events(api, node_name)
        self._shares = shares or SharesFile(None)
        self._due = threading.Event()
        self._over = threading.Event()
        mine = {"fieldSelector": f"spec.nodeName={node_name},{LIVING}"}
        self._pods = Watch(api, "/api/v1/pods", mine, changed=self._due.set, keep=slim)
        self._namespaces = Watch(api, "/api/v1/namespaces", changed=self._due.set)
        self._policies = PolicyWatch(api, changed=self._due.set) if has_policies else None
        """None: nobody looks for any."""
        self._watches = [one for one in (self._pods, self._namespaces, self._policies) if one is not None]
        self._text, self._config, self._base = "", Config(), Base()
        """The file as it was read last, what it says, and what of that counts where pods say nothing."""
        self._fitted: tuple[Config, Mapping[str, Any], tuple[Layer, dict[str, str]]] | None = None
        """The last layer, in which configuration it was fitted, and what came of it."""
        self._told: Mapping[str, Any] | None = None
        self._complaints: tuple[Complaint, ...] = ()
        self._refused: Mapping[str, str] = {}
        self._fault: str | None = None

    def start(self) -> None:
        for watch in self._watches:
            watch.start()
        self.events.start()
        threading.Thread(target=self._run, name="pods", daemon=True).start()

    def wake(self) -> None:
        """Something is another: look at once."""
        self._due.set()

    def close(self) -> None:
        self._over.set()
        self._due.set()
        self.events.close()
        for watch in self._watches:
            watch.close()

    def take(self, moment: Moment) -> Finding | None:
        """What a person must know."""
        faults = [self._fault] if self._fault is not None else []
        troubles = [one for one in (watch.trouble() for watch in self._watches) if one is not None]
        if troubles:
            away_s, why = max(troubles)
            if away_s >= SHORT_AWAY_S:
                faults.append(
                    f"pods: the API server has told nothing for {away_s:.0f} s, what it said before holds: {why}"
                )
        if self._shares.trouble is not None:
            faults.append(f"pods: which GPUs shares are of is not known: {self._shares.trouble}")
        faults += [f"pods: {name} is left to the file: {why}" for name, why in sorted(self._refused.items())]
        faults += [f"pods: {one}" for one in self._complaints]
        if len(faults) > _MOST_FAULTS:
            faults[_MOST_FAULTS:] = [
                f"pods: and {len(faults) - _MOST_FAULTS} more like these; see the pods' events"
            ]
        return Finding(faults=faults)

    # ---- the thread ----

    def _run(self) -> None:
        while not self._over.is_set():
            self._wait()
            self._due.clear()
            if self._over.is_set():
                return
            try:
                self.step()
                self._fault = None
            except ControlError as error:
                self._fault = f"pods: the daemon has not taken what they come to: {error}"
                self._try_again()
            except Exception as error:
                logger.exception("pods=failed")
                self._fault = f"pods: {error}"
                self._try_again()
            self._over.wait(_PAUSE_S)

    def _wait(self) -> None:
        """Until something is due; the file of shares has nobody who tells that it is another."""
        if self._shares.path is None:
            self._due.wait(_LOOK_S)
            return
        until_s = time.monotonic() + _LOOK_S
        while not self._due.wait(_SHARES_S) and not self._shares.is_changed() and time.monotonic() < until_s:
            pass

    def _try_again(self) -> None:
        self._over.wait(_AGAIN_S)
        self._due.set()

    def step(self) -> None:
        """Tell the daemon what pods come to now, if that is something else. Raises ControlError."""
        pods, namespaces = self._pods.items(), self._namespaces.items()
        policies = [] if self._policies is None else self._policies.items()
        if pods is None or namespaces is None or policies is None:
            return
        self._read()
        claimed = joined(source(pods) for source in self._sources)
        given = Given(self._shares.read(), claimed, teams_on(pods, namespaces))
        made = make_layer(pods, namespaces, policies, self._base, given)
        layer, refused = self._fit(made.layer)
        self._complaints, self._refused = tuple(made.complaints), refused
        self.events.tell(made.complaints)
        if layer != self._told:
            self._node.set_pods(layer)
            self._told = dict(layer)

    def _read(self) -> None:
        """The configuration: it is parsed when it is another, not at each event of a pod. Raises ControlError."""
        text = self._node.file_text()
        if text != self._text:
            config = from_bytes(text.encode(), "the configuration in force")
            self._text, self._config, self._base = text, config, Base.of(config)

    def _fit(self, layer: Layer) -> tuple[Layer, dict[str, str]]:
        """As :func:`fitting`, which reads all of the configuration: once for each layer and configuration."""
        if self._fitted is None or self._fitted[0] is not self._config or self._fitted[1] != layer:
            self._fitted = self._config, layer, fitting(self._config, layer)
        return self._fitted[2]


def slim(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is remembered of a pod: what it comes to hangs on nothing else. Its maker decides how large the rest is."""
    metadata, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    annotations = metadata.get("annotations") or {}
    asked = {
        key: [
            {"resources": {"limits": (one.get("resources") or {}).get("limits") or {}}} for one in spec[key]
        ]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }
    return {
        "metadata": {
            **{key: metadata[key] for key in ("namespace", "name", "uid", "labels") if key in metadata},
            "annotations": {key: value for key, value in annotations.items() if key.startswith(PREFIX)},
        },
        "spec": {**asked, **({"resourceClaims": spec["resourceClaims"]} if "resourceClaims" in spec else {})},
        "status": {key: status[key] for key in ("phase", "resourceClaimStatuses") if key in status},
    }


def part_of(config: Config, node: Node, sources: Sequence[Source] = ()) -> PodPart:
    """Raises ConfigError where there is no way to the API server."""
    section = config.kubernetes
    client = KubeClient(kubeconfig.access(section.kubeconfig), grant=grants.AGENT)
    name = node_name(section.node)
    shares = os.environ.get(shares_file.ENV)
    file = SharesFile(None if not shares else Path(shares))
    part = PodPart(node, client, name, file, sources, has_policies=section.watch_policies)
    part.start()
    return part
