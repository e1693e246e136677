# SPDX-License-Identifier: Apache-2.0
"""The page of a dcgm-exporter: what is taken from it, and the bounds within which it is read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fairsched.gpu import exporter_page
from fairsched.gpu.exporter_page import ExporterPage, parse
from fairsched.gpu.loads import LoadError

PAGE = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",pci_bus_id="00000000:01:00.0",device="nvidia0"} 70
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",device="nvidia2"} 9223372036854775794
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0"} 0.625
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="2",UUID="GPU-c",device="nvidia2"} 140737488355328.0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="3",UUID="GPU-d",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.9
DCGM_FI_PROF_SM_ACTIVE{gpu="3",UUID="GPU-d",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.5
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-d",GPU_I_PROFILE="1g.10gb",GPU_I_ID="8"} 70
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="4",UUID="GPU-e"} NaN
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="5",UUID="GPU-f"} -0.25
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0"} 0.5
DCGM_FI_PROF_SM_ACTIVE{gpu="6",UUID="GPU-g"} 140737488355328.0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="6",UUID="GPU-g"} 1
"""


def test_the_engines_activity_is_taken_else_the_utilisation_of_whole_gpus_and_never_a_blank() -> None:
    found = parse(PAGE, 5.0)
    assert {uuid: (load.active_ratio, load.what, load.sm_active_ratio) for uuid, load in found.items()} == {
        "GPU-a": (0.625, "GR_ENGINE_ACTIVE", 0.5),
        "GPU-b": (0.4, "GPU_UTIL", None),
        "GPU-d/7": (0.9, "GR_ENGINE_ACTIVE", 0.5),
        "GPU-g": (1.0, "GR_ENGINE_ACTIVE", None),
    }
    assert all(load.at_s == 5.0 for load in found.values())


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """serve(bytes, ...) -> the address of a page that answers one request with these, one after the other."""
    with contextlib.ExitStack() as stack:
        done = threading.Event()
        stack.callback(done.set)

        def begin(*answers: bytes, pause_s: float = 0.0) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=_answer, args=(listener, answers, pause_s, done), daemon=True)
            thread.start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

        yield begin


def _answer(
    listener: socket.socket, answers: tuple[bytes, ...], pause_s: float, done: threading.Event
) -> None:
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            for answer in answers:
                client.sendall(answer)
                if done.wait(pause_s):
                    return


def http(body: bytes, status: str = "200 OK", header: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{header}\r\n".encode() + body


def test_a_page_is_read(serve: Callable[..., str]) -> None:
    page = ExporterPage(serve(http(PAGE.encode())))
    assert page.read()["GPU-a"].active_ratio == 0.625
    assert "127.0.0.1" in page.where


def test_what_comes_after_a_question_mark_is_not_shown() -> None:
    assert "secret" not in ExporterPage("http://h/metrics?secret").where


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (http(b"", "503 Service Unavailable"), "answers 503"),
        (http(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "redirects"),
        (http(b"up 1\n"), "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        (http(b"\x00\xff{{{ not metrics }\n"), "not a page of metrics"),
        (b"nonsense\r\n\r\n", "no answer"),
        (b"", "no answer"),
    ],
)
def test_what_is_no_page_is_said_and_nothing_is_known(
    serve: Callable[..., str], answer: bytes, says: str
) -> None:
    with pytest.raises(LoadError, match=says):
        ExporterPage(serve(answer)).read()


def test_nobody_there_is_an_answer_too(serve: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LoadError, match="no answer"):
        ExporterPage(f"http://127.0.0.1:{port}/metrics").read()


def test_a_page_without_end_is_left(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "MAX_BYTES", 1 << 20)
    url = serve(http(b""), *[b"# filler\n" * 10_000] * 40)
    with pytest.raises(LoadError, match="more than 1 MiB"):
        ExporterPage(url).read()


def test_a_page_that_drips_is_left(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "TIMEOUT_S", 0.3)
    url = serve(http(b""), *[b"#\n"] * 10_000, pause_s=0.02)
    with pytest.raises(LoadError, match="not whole"):
        ExporterPage(url).read()


def test_a_page_that_hangs_is_left(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "TIMEOUT_S", 0.1)
    with pytest.raises(LoadError, match="no answer"):
        ExporterPage(serve(b"HTTP/1.1 200 OK\r\n", pause_s=30.0)).read()


def test_proxies_of_the_environment_are_not_used(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ExporterPage(serve(http(PAGE.encode()))).read()
