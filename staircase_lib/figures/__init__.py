"""One function a kind of picture: each takes arrays or a table and returns an Altair chart.

Nothing is computed here beyond reshaping, rounding for transport and placing labels; medians
over seeds are drawn by Vega. Every chart carries a description (its text alternative). Call
`enable` once a notebook. Tables are tidy: one row a measured value.

Charts of a page that have a slider or a time axis share the current moment: moving a slider
moves the thin rule in the curves, and the other sliders of the same `clock`.
"""

from staircase_lib.figures.comparisons import interval_chart, onset_chart
from staircase_lib.figures.curves import metric_curves, order_shares
from staircase_lib.figures.decisions import decision_table, stacked_scores
from staircase_lib.figures.distributions import distributions, signature_bars
from staircase_lib.figures.geometry import pca_scatter, similarity_heatmap
from staircase_lib.figures.orders import order_bars
from staircase_lib.figures.panels import interval_panels
from staircase_lib.figures.phase import phase_diagram
from staircase_lib.figures.recorded_runs import RecordedRuns, storyboard
from staircase_lib.figures.search_map import search_map
from staircase_lib.figures.small_multiples import onset_panels, paired_clouds
from staircase_lib.figures.style import ORDER_COLORS, SERIES_COLORS, enable
from staircase_lib.figures.token_scatter import token_scatter

__all__ = [
    "ORDER_COLORS",
    "SERIES_COLORS",
    "RecordedRuns",
    "decision_table",
    "distributions",
    "enable",
    "interval_chart",
    "interval_panels",
    "metric_curves",
    "onset_chart",
    "onset_panels",
    "order_bars",
    "order_shares",
    "paired_clouds",
    "pca_scatter",
    "phase_diagram",
    "search_map",
    "signature_bars",
    "similarity_heatmap",
    "stacked_scores",
    "storyboard",
    "token_scatter",
]
