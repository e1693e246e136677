# SPDX-License-Identifier: Apache-2.0
"""The calls of the Kubernetes API that fairsched needs, over plain HTTPS (decision 0011).

Every call ends within its time, whatever the server does: one deadline holds for the handshake, the request, the
headers and the body together (https.py), and the answer has a largest size. Only to look up the server's name takes as
long as the system's resolver does. Refusals are :class:`Refused` with the server's own reason; a server that is not
there, too slow, or answers something else than JSON is :class:`Unreachable`.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fairsched.errors import FairschedError
from fairsched.k8s.https import TimedConnection
from fairsched.k8s.kubeconfig import Access

MAX_ANSWER_BYTES = 32 << 20
PAGE = 250
"""Pods in one answer; some 20 kB each."""
_MAX_PAGES = 40
MAX_EVENT_BYTES = 4 << 20
"""Of a watch; etcd takes objects of 1.5 MB."""
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""


class Unreachable(FairschedError):
    """The API server could not be asked."""


class TooLong(Unreachable):
    """It answered with more than is read."""


class Refused(FairschedError):
    """The API server answered, and not with success."""

    def __init__(
        self,
        what: str,
        status: int,
        body: Mapping[str, Any],
        retry_after_s: float | None,
        grant: str = "",
    ) -> None:
        self.status = status
        self.is_servers = body.get("kind") == "Status"
        """The API server's own words; False: those of what it is a proxy of."""
        self.reason = str(body.get("reason") or "")
        self.message = str(body.get("message") or "")[:500]
        details = body.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        told = [cause for cause in causes or () if isinstance(cause, dict)]
        self.causes = tuple(str(cause.get("reason")) for cause in told)
        self.conflicts = tuple(
            f"{str(cause.get('field') or '').lstrip('.')}: {cause.get('message')}"[:300]
            for cause in told
            if cause.get("reason") == "FieldManagerConflict"
        )
        """Of a server-side apply: each field that another manager owns, with the server's words, which name it."""
        self.retry_after_s = retry_after_s
        """What the server asks to wait; None = it does not say."""
        remedy = ""
        if status == 401:
            remedy = "the token or certificate is not valid (any more)"
        elif self.is_forbidden:
            remedy = grant
        super().__init__(f"{what}: {status} {self.reason} {self.message}".rstrip(), remedy=remedy)

    @property
    def is_forbidden(self) -> bool:
        """RBAC, or who it proxies for, lets us not."""
        return self.status == 403

    @property
    def is_absent(self) -> bool:
        """There is no such object, or kind of object."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """It is there already, is another, or has changed meanwhile."""
        return self.status == 409

    @property
    def is_disruption_budget(self) -> bool:
        """A PodDisruptionBudget forbids the eviction now."""
        return self.status == 429 and (
            "DisruptionBudget" in self.causes or "disruption budget" in self.message
        )

    @property
    def is_passing(self) -> bool:
        """The server is overloaded or unwell: the same may work later."""
        return (self.status == 429 and not self.is_disruption_budget) or self.status >= 500


@dataclass(frozen=True)
class Times:
    """Limits of one call, in seconds."""

    connect_s: float = 5.0
    call_s: float = 15.0


class KubeClient:
    """One connection per call: the calls are minutes apart, and a kept one would have gone stale."""

    most_pages = _MAX_PAGES
    """Of a list."""

    def __init__(
        self,
        access: Access,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        grant: str = "",
    ) -> None:
        """``grant``: the remedy of a call that RBAC forbids; see k8s/grants.py."""
        self._access = access
        self._grant = grant
        self._times = times or Times()
        self._clock = clock
        self._eviction_version: str | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What is at `path`, such as ``/api/v1/namespaces/ml``. Raises Refused (404: nothing) or Unreachable."""
        return self._call("GET", _with(path, query))

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make `body` in the collection at `path`; what became of it. Raises Refused (409: there is one)."""
        return self._call("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put `body` at `path`. Raises Refused: 409 if it was changed since the ``resourceVersion`` in `body`."""
        return self._call("PUT", path, body)

    def patch(self, path: str, patch: Mapping[str, Any], manager: str | None = None) -> Mapping[str, Any]:
        """A JSON merge patch; with ``metadata.resourceVersion`` it is refused (409) if the object has changed.

        ``manager``: who owns the fields afterwards; None: the server takes the name of this program.
        """
        query = None if manager is None else {"fieldManager": manager}
        return self._call("PATCH", _with(path, query), patch, MERGE_PATCH)

    def apply(
        self,
        path: str,
        body: Mapping[str, Any],
        manager: str,
        *,
        force: bool = False,
        is_dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Server-side apply of what `manager` wants of the object at `path`; the whole object, as it is then.

        Raises Refused: 409 where another manager owns a field, unless with `force`.
        """
        query = {
            "fieldManager": manager,
            "force": str(force).lower(),
            **({"dryRun": "All"} if is_dry_run else {}),
        }
        return self._call("PATCH", _with(path, query), body, APPLY_PATCH)

    def delete(self, path: str, uid: str | None = None, version: str | None = None) -> None:
        """Remove the object at `path`, if it is still that of `uid`, as it was at ``version``.

        Raises Refused: 404 gone, 409 another uid or version.
        """
        wanted = {"uid": uid, "resourceVersion": version}
        conditions = {key: value for key, value in wanted.items() if value is not None}
        self._call("DELETE", path, {"preconditions": conditions} if conditions else None)

    def node(self, name: str) -> Mapping[str, Any]:
        """A node. Raises Refused (404 when there is none) or Unreachable."""
        return self._call("GET", f"/api/v1/nodes/{quote(name)}")

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A JSON merge patch; with ``metadata.resourceVersion`` it is refused (409) if the node has changed."""
        return self._call("PATCH", f"/api/v1/nodes/{quote(name)}", patch, MERGE_PATCH)

    def pods_on(self, node: str) -> list[Mapping[str, Any]]:
        """Every pod that is bound to `node`."""
        return self.listed("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})[0]

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        """Everything at `path`, and the version of the list: where a watch goes on. Raises Refused or Unreachable.

        Who may make objects decides how large they are: what is too long for a page is asked for in smaller ones.
        """
        items: list[Mapping[str, Any]] = []
        more, version, size, asked = "", "", PAGE, 0
        while asked < self.most_pages * PAGE:
            page = {**query, "limit": str(size), **({"continue": more} if more else {})}
            try:
                answer = self._call("GET", f"{path}?{urlencode(page)}")
            except TooLong:
                if size == 1:
                    raise
                size //= 2
                continue
            asked += size
            metadata = answer.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            items += [item for item in answer.get("items") or () if isinstance(item, dict)]
            version = str(metadata.get("resourceVersion") or "")
            more = str(metadata.get("continue") or "")
            if not more:
                return items, version
        raise Unreachable(f"more than {self.most_pages * PAGE} objects at {path}")

    def events(
        self, path: str, query: Mapping[str, str], take: Callable[[Mapping[str, Any]], None], last_s: float
    ) -> None:
        """Hands each event of a watch to `take`, until the server ends it, which it was asked to do after `last_s`.

        Raises Refused or Unreachable, and what `take` raises.
        """
        what = f"WATCH {path}"
        connection = self._connect(self._clock() + last_s + self._times.call_s)
        try:
            connection.request(
                "GET",
                f"{self._access.server.path.rstrip('/')}{path}?{urlencode(query)}",
                headers=self._headers(None),
            )
            response = connection.getresponse()
            if response.status != 200:
                _judge(what, response, _read(response), self._grant)
                raise Unreachable(f"{what}: status {response.status}")
            while line := response.readline(MAX_EVENT_BYTES + 1):
                if len(line) > MAX_EVENT_BYTES:
                    raise Unreachable(f"{what}: an event is longer than {MAX_EVENT_BYTES} bytes")
                take(_event(what, line))
        except (OSError, http.client.HTTPException) as error:
            why = "it hangs" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise Unreachable(f"{what} at {self._access.server.netloc}: {why}") from error
        finally:
            connection.close()

    def report_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Make an Event, for who asks what became of an object. Raises Refused or Unreachable."""
        self._call("POST", f"/api/v1/namespaces/{quote(namespace)}/events", event)

    def pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod; Refused with 404 when it is gone."""
        return self._call("GET", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}")

    def eviction_version(self) -> str:
        """``policy/v1`` or ``policy/v1beta1``: what this server's pods/eviction takes. Asked once.

        Servers before 1.22 know only v1beta1, those from 1.25 only v1.
        """
        if self._eviction_version is None:
            answer = self._call("GET", "/api/v1")
            for resource in answer.get("resources") or ():
                if isinstance(resource, dict) and resource.get("name") == "pods/eviction":
                    group, version = resource.get("group") or "policy", resource.get("version") or "v1beta1"
                    self._eviction_version = f"{group}/{version}"
                    break
            else:
                raise Unreachable("the API server knows no eviction of pods")
        return self._eviction_version

    def evict(
        self, namespace: str, name: str, uid: str, grace_s: int | None, *, is_dry_run: bool = False
    ) -> None:
        """Evict the pod of that very uid. Raises Refused: 429 for a PodDisruptionBudget, 404 gone, 409 another uid.

        With `is_dry_run` the server answers as it would, and changes nothing.
        """
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if is_dry_run:
            options["dryRun"] = ["All"]
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = {
            "apiVersion": self.eviction_version(),
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        self._call("POST", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction", body)

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Mapping[str, Any]:
        what = f"{method} {path.partition('?')[0]}"
        connection = self._connect(self._clock() + self._times.call_s)
        try:
            connection.request(
                method,
                self._access.server.path.rstrip("/") + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=self._headers(None if body is None else content_type),
            )
            response = connection.getresponse()
            raw = _read(response)
        except (OSError, http.client.HTTPException) as error:
            why = (
                "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            )
            kind = TooLong if isinstance(error, _Longer) else Unreachable
            raise kind(f"{what} at {self._access.server.netloc}: {why}") from error
        finally:
            connection.close()
        return _judge(what, response, raw, self._grant)

    def _connect(self, end_s: float) -> TimedConnection:
        def left_s() -> float:
            left = end_s - self._clock()
            if left <= 0:
                raise TimeoutError
            return left

        server = self._access.server
        assert server.hostname is not None
        return TimedConnection(
            server.hostname,
            server.port or 443,
            timeout=self._times.connect_s,
            left_s=left_s,
            context=self._access.tls,
            server_name=self._access.server_name,
        )

    def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "fairsched"}
        token = self._access.bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers


def _with(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _event(what: str, line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise Unreachable(f"{what}: an event is not a JSON object; is this an API server?")
    return event


class _Longer(http.client.HTTPException):
    """Than an answer may be."""


def _read(response: http.client.HTTPResponse) -> bytes:
    data = bytearray()
    while chunk := response.read1(65536):
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise _Longer(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def _judge(what: str, response: http.client.HTTPResponse, raw: bytes, grant: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(raw) if raw else {}
    except ValueError:
        answer = None
    if 200 <= response.status < 300:
        if not isinstance(answer, dict):
            raise Unreachable(f"{what}: the answer is not a JSON object; is this an API server?")
        return answer
    retry = response.headers.get("Retry-After", "")
    body = answer if isinstance(answer, dict) else {"message": raw[:200].decode(errors="replace")}
    raise Refused(what, response.status, body, float(retry) if retry.isdigit() else None, grant)
