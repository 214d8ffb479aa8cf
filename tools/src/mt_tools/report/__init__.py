"""A run as one page: what ``mt-report`` reads from a run's folder, and the HTML that it writes.

Reading order: ``run`` (a folder), ``files`` and ``state`` (how it is opened, and whether it is under way), ``series`` and ``curves``
(its figures), ``evaluations``, ``checkpoint_evaluations`` and ``predictions`` (what it was asked), ``rollouts`` and ``alarms`` (what it
learned from),
``settings`` (its config), ``summary`` (its head), ``sections``, ``answers`` and ``charts`` (the parts of the page), ``page`` (the
whole), ``output`` (the file). ``rows`` and ``data_page`` show what ``mt-data inspect`` found in the same style. What other pages of
runs are made of is public. Nothing here imports torch or matplotlib.
"""

from mt_tools.report.charts import Chart, chart_data, charts_of, figures
from mt_tools.report.checkpoint_evaluations import calls_of_eval
from mt_tools.report.curves import Curves
from mt_tools.report.files import open_plain, read_plain
from mt_tools.report.markup import Markup, element, join, table
from mt_tools.report.page import PARTS, asset, document
from mt_tools.report.run import CONFIG, Run, RunLines, read_run, short_names
from mt_tools.report.sections import section, swatch
from mt_tools.report.series import Series, round_for_json
from mt_tools.report.state import RunState, read_state
from mt_tools.report.summary import number

__all__ = [
    "CONFIG",
    "PARTS",
    "Chart",
    "Curves",
    "Markup",
    "Run",
    "RunLines",
    "RunState",
    "Series",
    "asset",
    "calls_of_eval",
    "chart_data",
    "charts_of",
    "document",
    "element",
    "figures",
    "join",
    "number",
    "open_plain",
    "read_plain",
    "read_run",
    "read_state",
    "round_for_json",
    "section",
    "short_names",
    "swatch",
    "table",
]
