# SPDX-License-Identifier: Apache-2.0
"""Keeps the plugin registered with the kubelet, over restarts of either.

Problem. A kubelet that starts removes every socket in its directory and knows no plugin. It may be away for any time,
and nothing tells when it is back.

Approach. Looked at again and again: when our socket is gone or another's, it is made anew and registered. When nobody
has read our list for WATCHED_S since we registered, that is done again: a kubelet that has lost us without removing the
socket. Who cannot register tries again, at longer intervals, and says why once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from fairsched.errors import FairschedError
from fairsched.k8s.grpc_io import NotAnswered, ask, serve
from fairsched.k8s.plugin.service import WORKERS, ShareService
from fairsched.k8s.plugin.shares import RESOURCE
from fairsched.k8s.proto.deviceplugin_pb2 import DevicePluginOptions, Empty, RegisterRequest

KUBELET = "kubelet.sock"
VERSION = "v1beta1"
CALL = "/v1beta1.Registration/Register"
ANSWERED_S = 5.0
WATCHED_S = 10.0
"""The kubelet opens its stream at once; a node that is short of processors needs a while."""
AGAIN_S = (1.0, 2.0, 5.0, 10.0)
"""Between tries; the last for all that follow."""
_GRACE_S = 1.0

logger = logging.getLogger(__name__)


class Link:
    """One resource and one kubelet. Not for several threads."""

    def __init__(
        self,
        service: ShareService,
        directory: Path,
        resource: str = RESOURCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._resource, self._clock = service, resource, clock
        self._kubelet = directory / KUBELET
        self.path = directory / f"{resource.replace('/', '_')}.sock"
        self._server: grpc.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._registered_s: float | None = None
        self._seen_s = 0.0
        self._tries, self._next_s = 0, 0.0
        self._said: str | None = None

    @property
    def is_registered(self) -> bool:
        return self._registered_s is not None

    def step(self) -> None:
        """Do what is to be done now; takes no longer than one call."""
        now_s = self._clock()
        if self._server is None or _inode(self.path) != self._inode:
            self._registered_s = None
            if now_s < self._next_s or not self._serve():
                return
        if self._service.is_watched:
            self._seen_s = now_s
        if self._registered_s is not None and now_s - max(self._registered_s, self._seen_s) >= WATCHED_S:
            self._say("nobody reads what there is")
            self._registered_s = None
        if self._registered_s is None and now_s >= self._next_s:
            self._register(now_s)

    def close(self) -> None:
        """The kubelet then knows that the shares cannot be given out; pods that have some keep them."""
        self._service.close()
        if self._server is not None:
            is_ours = _inode(self.path) == self._inode
            self._server.stop(_GRACE_S).wait(2 * _GRACE_S)
            if is_ours:
                self.path.unlink(missing_ok=True)

    def _serve(self) -> bool:
        if self._server is not None:
            self._server.stop(None)
            self._server = None
        try:
            self._server = serve(self.path, self._service.handler(), workers=WORKERS)
        except OSError as error:
            self._fail(str(error))
            return False
        self._inode = _inode(self.path)
        self._tries, self._next_s = 0, 0.0
        return True

    def _register(self, now_s: float) -> None:
        request = RegisterRequest(
            version=VERSION,
            endpoint=self.path.name,
            resource_name=self._resource,
            options=DevicePluginOptions(get_preferred_allocation_available=True),
        )
        try:
            ask(self._kubelet, CALL, request, Empty, ANSWERED_S)
        except (NotAnswered, FairschedError, OSError) as error:
            self._fail(str(error))
            return
        self._registered_s, self._tries, self._said = now_s, 0, None
        logger.info("plugin=registered resource=%s", self._resource)

    def _fail(self, why: str) -> None:
        self._next_s = self._clock() + AGAIN_S[min(self._tries, len(AGAIN_S) - 1)]
        self._tries += 1
        self._say(why)

    def _say(self, why: str) -> None:
        if why != self._said:
            self._said = why
            logger.warning("plugin=unregistered reason=%r", why)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
