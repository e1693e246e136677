# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboard: ``python packaging/grafana/board.py > packaging/grafana/fairsched.json``.

Problem: a dashboard is thousands of lines of JSON that nobody reviews and everybody edits by hand.

Approach: the panels are the tables of panels.py, one entry each: what it shows, why one looks at it, and the
expression. The library of Grafana's makers (grafana-foundation-sdk, pinned) knows the JSON. Only metrics of the
exporter are asked for, so the board works without the recording rules. A test writes the board anew and compares.

Terms. A panel is a picture; a row is a heading that folds those below it; a target is one expression of a panel.
"""

from __future__ import annotations

import json
import sys

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from panels import ROWS, N, Picture

UID = "fairsched"
NOT_OURS = ("id", "auto", "auto_count", "auto_min")
"""What the library writes into every variable and Grafana knows only in intervals, or not at all."""
SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")


def panel(picture: Picture) -> stat.Panel | timeseries.Panel:
    """The library's builder of one picture."""
    made = (
        _look(picture)
        .title(picture.title)
        .description(picture.why)
        .datasource(SOURCE)
        .unit(picture.unit)
        .span(picture.width)
        .height(4 if picture.is_one_number else 8)
    )
    if picture.limit is not None:
        below, above = ("red", "green") if picture.is_bad_below else ("green", "red")
        steps = [Threshold(None, below), Threshold(picture.limit, above)]
        made.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    for place, (legend, expression) in enumerate(picture.targets.items()):
        query = Dataquery().expr(expression).ref_id(chr(ord("A") + place)).legend_format(legend)
        made.with_target(query.instant() if picture.is_one_number else query.range())
    return made


def _look(picture: Picture) -> stat.Panel | timeseries.Panel:
    """A number with its colour behind it, or lines with the limit drawn in."""
    if picture.is_one_number:
        return (
            stat.Panel()
            .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
            .color_mode(BigValueColorMode.BACKGROUND)
            .graph_mode(BigValueGraphMode.NONE)
        )
    made = (
        timeseries.Panel()
        .fill_opacity(5)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if picture.limit is not None:
        made.thresholds_style(GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    return made


def variable(name: str, label: str, query: str) -> QueryVariable:
    """A choice of one, several or all."""
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def board() -> Dashboard:
    """Everything, in the order in which it is shown."""
    made = (
        Dashboard("fairsched")
        .uid(UID)
        .description("Shares of GPU time: who got what, who was held and why, and whether it was fair.")
        .tags(["fairsched", "gpu"])
        .time("now-30m", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(variable("node", "Node", "label_values(fairsched_up, instance)"))
        .with_variable(variable("gpu", "GPU", f"label_values(fairsched_gpu_busy_ratio{{{N}}}, gpu_uuid)"))
        .with_variable(variable("tenant", "Tenant", f"label_values(fairsched_weight{{{N}}}, tenant)"))
    )
    for title, pictures in ROWS.items():
        made.with_row(Row(title))
        for picture in pictures:
            made.with_panel(panel(picture))
    return made


def main() -> None:
    """To stdout; panels get their ids here, as Grafana would give them only when it is saved."""
    made = board().build()
    for place, one in enumerate(made.panels or (), 1):
        one.id_val = place
    document = json.loads(JSONEncoder().encode(made))
    document.pop("style", None)  # whoever looks at it chooses; gone since Grafana 11
    for one in document["templating"]["list"]:
        for key in NOT_OURS:
            one.pop(key, None)
    sys.stdout.write(json.dumps(document, sort_keys=True, indent=2) + "\n")


if __name__ == "__main__":
    main()
