# SPDX-License-Identifier: Apache-2.0
"""A list that is kept current: through ends of watches, outages and a server that forgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fairsched.k8s import client as kube
from fairsched.k8s.client import KubeClient, Refused, Unreachable
from fairsched.k8s.watch import Watch
from tests.unit.companion.escalate.api_server import ApiServer


def item(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ml", "uid": name, "resourceVersion": version}}


class Server:
    """Hands out what a test has laid ready: a list, or the events of one watch, or an error."""

    def __init__(self) -> None:
        self.lists: list[tuple[list[Mapping[str, Any]], str]] = []
        self.watches: list[list[dict[str, Any]] | Exception] = []
        self.asked: list[str] = []
        """The versions that watches went on from."""

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        return self.lists.pop(0)

    def events(
        self, path: str, query: Mapping[str, str], take: Callable[[Mapping[str, Any]], None], last_s: float
    ) -> None:
        self.asked.append(query["resourceVersion"])
        events = self.watches.pop(0)
        if isinstance(events, Exception):
            raise events
        for event in events:
            take(event)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def names(watch: Watch) -> set[str]:
    return {one["metadata"]["name"] for one in watch.items() or ()}


@pytest.fixture
def server() -> Server:
    return Server()


def test_nothing_is_known_before_the_first_list(server: Server) -> None:
    assert Watch(server, "/api/v1/pods").items() is None


def test_what_comes_changes_and_goes_is_seen_and_the_next_watch_goes_on_there(server: Server) -> None:
    changes: list[int] = []
    watch = Watch(server, "/api/v1/pods", changed=lambda: changes.append(1))
    server.lists = [([item("a")], "10")]
    server.watches = [
        [
            {"type": "ADDED", "object": item("b", "11")},
            {"type": "DELETED", "object": item("a", "12")},
            {"type": "MODIFIED", "object": item("b", "13")},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}},
        ],
        [],
    ]
    watch.step()
    assert names(watch) == {"b"} and len(changes) == 4, "a bookmark changes nothing"
    watch.step()
    assert server.asked == ["10", "40"]


def test_an_outage_keeps_what_was_seen_and_says_since_when(server: Server) -> None:
    clock = Clock()
    watch = Watch(server, "/api/v1/pods", clock=clock)
    server.lists, server.watches = [([item("a")], "10")], [Unreachable("refused"), Unreachable("refused")]
    for _ in range(2):
        with pytest.raises(Unreachable) as error:
            watch.step()
        watch._note(str(error.value))
        clock.now_s += 30
    assert names(watch) == {"a"}
    assert watch.trouble() == (60, "refused")
    server.watches = [[{"type": "ADDED", "object": item("b", "11")}]]
    watch.step()
    assert watch.trouble() is None and names(watch) == {"a", "b"}
    assert server.asked == ["10", "10", "10"], "nothing is listed anew for it"


class Patience:
    """Waits for nothing, and remembers how long that was meant to be; over after so many."""

    def __init__(self, most: int) -> None:
        self.waits_s: list[float] = []
        self._most = most

    def wait(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    def is_set(self) -> bool:
        return len(self.waits_s) >= self._most


def test_a_server_that_is_away_is_found_soon_when_it_is_back_and_one_that_refuses_is_spared(
    server: Server,
) -> None:
    """What was said while it was away is in effect some seconds after it is back, however long that was."""
    refused = Refused("no", 503, {}, None)
    back: list[dict[str, Any]] = [{"type": "ADDED", "object": item("b", "11")}]
    server.lists = [([], "10")]
    server.watches = [*[Unreachable("away")] * 8, *[refused] * 4, back, Unreachable("away")]
    watch = Watch(server, "/api/v1/pods")
    patience = Patience(13)
    watch._over = patience  # type: ignore[assignment]
    watch.run()
    away, refusals, after = patience.waits_s[:8], patience.waits_s[8:12], patience.waits_s[12]
    meant = [1, 2, 4, 5, 5, 5, 5, 5], [5, 10, 20, 30]
    for waits, most in zip((away, refusals), meant, strict=True):
        assert all(top / 2 <= one <= top for one, top in zip(waits, most, strict=True)), waits
    assert len(set(away)) == len(away), "nodes do not come back in the same moment"
    assert after <= 1, "it told something meanwhile"


def test_an_outage_that_ends_without_an_event_is_over_with_the_watch(server: Server) -> None:
    watch = Watch(server, "/api/v1/pods")
    server.lists, server.watches = [([], "10")], [[]]
    watch._note("refused")
    watch.step()
    assert watch.trouble() is None


@pytest.mark.parametrize(
    "forgotten",
    [
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}],
        Refused("WATCH", 410, {"reason": "Expired"}, None),
    ],
)
def test_a_server_that_has_forgotten_the_version_is_asked_for_all_again(
    server: Server, forgotten: Any
) -> None:
    watch = Watch(server, "/api/v1/pods")
    server.lists = [([item("a")], "10"), ([item("b")], "90")]
    server.watches = [forgotten, []]
    watch.step()
    assert names(watch) == {"a"}, "until it is told anew"
    watch.step()
    assert names(watch) == {"b"} and server.asked == ["10", "90"]


def test_another_refusal_or_error_is_a_trouble(server: Server) -> None:
    watch = Watch(server, "/api/v1/pods")
    server.lists = [([], "10")]
    server.watches = [
        Refused("WATCH", 403, {"reason": "Forbidden"}, None),
        [{"type": "ERROR", "object": {"code": 500, "message": "etcd is gone"}}],
        [{"type": "ADDED"}],
    ]
    with pytest.raises(Refused):
        watch.step()
    with pytest.raises(Unreachable, match="etcd is gone"):
        watch.step()
    with pytest.raises(Unreachable, match="without an object"):
        watch.step()


# ---- over the wire ----


def streaming(*lines: bytes) -> Callable[[Any], None]:
    """A fault of the server: a watch with these lines."""

    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"".join(lines))

    return answer


def test_events_are_read_line_by_line_until_the_server_ends_it(api: ApiServer, client: KubeClient) -> None:
    api.fail("GET", "watch=true", streaming(b'{"type": "ADDED"}\n', b'{"type": "BOOKMARK"}\n'))
    seen: list[Mapping[str, Any]] = []
    client.events("/api/v1/pods", {"watch": "true"}, seen.append, 5)
    assert [one["type"] for one in seen] == ["ADDED", "BOOKMARK"]


def test_an_event_that_is_too_long_is_an_error(
    api: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "MAX_EVENT_BYTES", 10)
    api.fail("GET", "watch=true", streaming(b'{"type": "A"}\n'))
    with pytest.raises(Unreachable, match="longer than 10 bytes"):
        client.events("/api/v1/pods", {"watch": "true"}, print, 5)


def test_what_is_no_event_and_a_refusal_are_errors(api: ApiServer, client: KubeClient) -> None:
    api.fail("GET", "watch=true", streaming(b"<html>\n"))
    with pytest.raises(Unreachable, match="not a JSON object"):
        client.events("/api/v1/pods", {"watch": "true"}, print, 5)
    api.tokens.clear()
    with pytest.raises(Refused):
        client.events("/api/v1/pods", {"watch": "true"}, print, 5)
