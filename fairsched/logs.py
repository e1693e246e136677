# SPDX-License-Identifier: Apache-2.0
"""The daemon's log on stderr: one line per event, logfmt or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time


class LogfmtFormatter(logging.Formatter):
    """``level=info logger=daemon ...``; under journald the time is journald's, so a line begins at level."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("fairsched.")
        text = f"level={record.levelname.lower()} from={name} {record.getMessage()}"
        if record.exc_info:
            text += f" exception={self.formatException(record.exc_info)!r}"
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "from": record.name.removeprefix("fairsched."),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(line_format: str, level: str) -> None:
    """Log everything of fairsched to stderr; ``line_format`` is logfmt or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else LogfmtFormatter())
    root = logging.getLogger("fairsched")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
