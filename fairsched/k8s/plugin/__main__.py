# SPDX-License-Identifier: Apache-2.0
"""``python3 -m fairsched.k8s.plugin``. Exit: 0 ended as asked, or healthy; 1 failed, or not healthy; 2 usage."""

from __future__ import annotations

import signal
import sys
import threading

from fairsched.base.logs import set_up_logging
from fairsched.errors import FairschedError
from fairsched.k8s.grpc_io import ask
from fairsched.k8s.plugin.link import Link
from fairsched.k8s.plugin.loop import Loop
from fairsched.k8s.plugin.service import SERVICE, ShareService
from fairsched.k8s.plugin.settings import PluginSettings, parser, settings_of
from fairsched.k8s.proto.deviceplugin_pb2 import DevicePluginOptions, Empty

_ANSWERED_S = 5.0


def healthy(settings: PluginSettings) -> int:
    """Whether the plugin that runs here answers."""
    path = Link(ShareService(1), settings.plugins).path
    ask(path, f"/{SERVICE}/GetDevicePluginOptions", Empty(), DevicePluginOptions, _ANSWERED_S)
    print("answers")
    return 0


def main(arguments: list[str]) -> int:
    try:
        told = parser().parse_args(arguments)
        settings = settings_of(told)
        if told.health:
            return healthy(settings)
        set_up_logging("logfmt", "info")
        over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        loop = Loop(settings)
        try:
            loop.run(over)
        finally:
            loop.close()
    except FairschedError as error:
        print(
            f"error: {error}\n  remedy: {error.remedy}" if error.remedy else f"error: {error}",
            file=sys.stderr,
        )
        return error.exit_status
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
