# SPDX-License-Identifier: Apache-2.0
"""The driver's two sockets: one by which the kubelet finds it, one on which it has claims prepared.

A kubelet looks into its directory ``plugins_registry`` when it starts, and watches it: a socket there is asked what it
is. It registers the driver anew whenever that socket is made anew, so that :meth:`Sockets.refresh`, which makes what is
missing, is all that is needed after either of the two was restarted or somebody has emptied the directory.

Errors: OSError where a socket cannot be made. What goes wrong with a claim is an answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

import grpc

from fairsched.errors import FairschedError
from fairsched.k8s.dra import DRIVER
from fairsched.k8s.dra.driver import Driver
from fairsched.k8s.grpc_io import Call, Context, Handler, handler, serve
from fairsched.k8s.proto import dra_pb2 as dra
from fairsched.k8s.proto import pluginregistration_pb2 as registration

SERVICE = "v1.DRAPlugin"
"""What the kubelet is told; the wire has the whole name of the package."""
MOST_ERROR_CHARS = 1000
_STOP_S = 1.0

logger = logging.getLogger(__name__)


class Sockets:
    """Serves `driver` to the kubelet whose directory that is. Call :meth:`close` in the end."""

    def __init__(self, kubelet_dir: Path, driver: Driver) -> None:
        self._driver = driver
        self.serving = kubelet_dir / "plugins" / DRIVER / "dra.sock"
        self.registering = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._servers: dict[Path, tuple[grpc.Server, int]] = {}
        """With the inode of its socket."""
        self._lock = threading.Lock()
        self.refusal: str | None = "the kubelet has not asked for it yet"
        """Why it is not registered; None: it is."""

    def refresh(self) -> bool:
        """Make the sockets that are not ours or not there; True: some were. Raises OSError."""
        made = False
        with self._lock:
            # The registering one last: a kubelet that sees it calls the other one at once.
            for path, served in ((self.serving, self._dra()), (self.registering, self._registration())):
                if self._is_served(path):
                    continue
                self._end(path)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
                server = serve(path, served)
                self._servers[path] = (server, _inode(path))
                made = True
        return made

    def close(self) -> None:
        """End both. The registering socket goes first: the kubelet then knows that nobody is here, whatever happens to
        us meanwhile."""
        with self._lock:
            for path in (self.registering, self.serving):
                if self._is_served(path):
                    with contextlib.suppress(OSError):
                        path.unlink()
            for path in (self.registering, self.serving):
                self._end(path)

    def _is_served(self, path: Path) -> bool:
        return path in self._servers and self._servers[path][1] == _inode(path)

    def _end(self, path: Path) -> None:
        """A server that ends removes what is at its path, ours or not: wait for that."""
        if path in self._servers:
            self._servers.pop(path)[0].stop(_STOP_S).wait(2 * _STOP_S)

    # ---- calls ----

    def _registration(self) -> Handler:
        calls = {
            "GetInfo": Call(self._info, registration.InfoRequest, registration.PluginInfo),
            "NotifyRegistrationStatus": Call(
                self._notify, registration.RegistrationStatus, registration.RegistrationStatusResponse
            ),
        }
        return handler("pluginregistration.Registration", calls)

    def _dra(self) -> Handler:
        calls = {
            "NodePrepareResources": Call(
                self._prepare, dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
            ),
            "NodeUnprepareResources": Call(
                self._unprepare, dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
            ),
        }
        return handler("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls)

    def _info(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self.serving), supported_versions=[SERVICE]
        )

    def _notify(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.refusal = None if request.plugin_registered else f"the kubelet refused it: {request.error[:300]}"
        if self.refusal is None:
            logger.info("dra=registered")
        else:
            logger.error("dra=refused error=%r", self.refusal)
        return registration.RegistrationStatusResponse()

    def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse:
        answer = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            one = answer.claims[claim.uid]
            try:
                given = self._driver.prepare(claim.namespace, claim.name, claim.uid)
            except Exception as error:  # whatever it is, it is this claim's
                one.error = _said("prepare", claim, error)
                continue
            for device, names in given:
                one.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=names,
                )
        return answer

    def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            one = answer.claims[claim.uid]
            try:
                self._driver.unprepare(claim.uid)
            except Exception as error:
                one.error = _said("undo", claim, error)
        return answer


def _said(what: str, claim: dra.Claim, error: Exception) -> str:
    """For the event on the pod, and for the log."""
    text = error.with_remedy() if isinstance(error, FairschedError) else str(error) or type(error).__name__
    if not isinstance(error, FairschedError):
        logger.exception("claim=failed what=%s uid=%s", what, claim.uid)
    logger.warning(
        "claim=refused what=%s namespace=%s name=%s error=%r", what, claim.namespace, claim.name, text
    )
    return text[:MOST_ERROR_CHARS]


def _inode(path: Path) -> int:
    """0 where there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0
