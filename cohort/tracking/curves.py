"""curves.png: the run in six small pictures, drawn from metrics.jsonl alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.tracking.jsonl import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1f2933"
FAINT = "#9aa5b1"
COLOURS = ("#2563a8", "#d9822b", "#2f855a", "#9b4d96")


@dataclass(frozen=True)
class Series:
    """A line: steps, values, and the low and high end of their uncertainty where it is known."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One small picture: a title, what its unit is, and where its lines come from."""

    title: str
    note: str
    series: Callable[[Rows], list[Series]]
    percent: bool = False
    markers: bool = False


Rows = Sequence[Mapping[str, float]]


def draw_curves(folder: Path) -> Path | None:
    """Draws ``<folder>/curves.png`` from ``<folder>/metrics.jsonl``.

    Returns:
        The picture, or None when no step was logged, which leaves nothing to draw.
    """
    rows = read_metrics(folder / "metrics.jsonl")
    drawn = [(panel, series) for panel in PANELS if (series := panel.series(rows))]
    if not drawn:
        return None
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: a notebook's own back end stays as it is
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(len(drawn), 3)
    lines = math.ceil(len(drawn) / columns)
    style: Any = {"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}
    with matplotlib.rc_context(style):
        figure = Figure(
            figsize=(3.7 * columns, 2.6 * lines + 0.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        )
        axes = figure.subplots(lines, columns, squeeze=False)
        last_step = max(row["step"] for row in rows)
        for axis, (panel, series) in zip(axes.flat, drawn, strict=False):
            _panel(axis, panel, series, last_step)
        for axis in axes.flat[len(drawn) :]:
            axis.set_axis_off()
        for axis in axes[-1]:
            axis.set_xlabel("training step", color=FAINT)
        figure.suptitle(str(folder.name), x=0.01, ha="left", fontsize=11, fontweight="bold")
        path = folder / "curves.png"
        figure.savefig(path, dpi=150, facecolor="white")
    return path


def _panel(axis: Axes, panel: Panel, series: Sequence[Series], last_step: float) -> None:
    axis.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", pad=16)
    axis.text(0, 1.03, panel.note, transform=axis.transAxes, fontsize=7.5, color=FAINT, va="bottom")
    for colour, line in zip(COLOURS, series, strict=False):
        if panel.markers:
            axis.plot(
                line.steps, line.values, color=colour, lw=1.6, marker="o", ms=3.5, label=line.label, clip_on=False
            )
            axis.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.15, lw=0)
        elif len(line.values) >= SMOOTH_FROM:
            axis.plot(line.steps, line.values, color=colour, lw=0.8, alpha=0.3)
            axis.plot(line.steps, smoothed(line.values), color=colour, lw=1.8, label=line.label)
        else:
            axis.plot(
                line.steps, line.values, color=colour, lw=1.6, marker="o", ms=2.5, label=line.label, clip_on=False
            )
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=7.5, handlelength=1.2, labelcolor=INK)
    lowest = min((v for line in series for v in (*line.values, *line.low) if math.isfinite(v)), default=0.0)
    _axes(axis, panel, last_step, from_zero=lowest >= 0)


def _axes(axis: Axes, panel: Panel, last_step: float, *, from_zero: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    axis.set_xlim(0, max(last_step, 1) * 1.02)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))  # no common factor above the axis
    if panel.percent:
        axis.set_ylim(0, 1.02)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif from_zero:  # noise around a constant should look like a constant
        axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#cbd2d9")
    axis.tick_params(colors="#616e7c", length=0, labelsize=8)


SMOOTH_FROM = 20  # fewer points than this are drawn as they are


def smoothed(values: Sequence[float], span: int | None = None) -> list[float]:
    """A moving average over the last ``span`` values, by default a twentieth of them; NaN is left out."""
    span = span or max(len(values) // 20, 3)
    found = []
    for end in range(1, len(values) + 1):
        window = [value for value in values[max(end - span, 0) : end] if math.isfinite(value)]
        found.append(sum(window) / len(window) if window else math.nan)
    return found


# --- where the lines come from ----------------------------------------------------------------


def _named(*names: str, label: str = "") -> Callable[[Rows], list[Series]]:
    """The first of ``names`` that was logged."""

    def series(rows: Rows) -> list[Series]:
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            if points:
                steps, values = zip(*points, strict=True)
                return [Series(label, steps, values)]
        return []

    return series


def _validation(rows: Rows) -> list[Series]:
    """The core means of every data source, with their intervals, and greedy ones beside them."""
    found = []
    names = {name: None for row in rows for name in row}
    means = [n for n in names if n.startswith("val-core/") and n.split("/")[-1].startswith("mean@")]
    greedy = [n for n in names if "/greedy_" in n and n.endswith("/mean")]
    several = len(means) > 1
    for name in means:
        source = name.removeprefix("val-core/").rsplit("/", 2)[0]
        bounds = name.replace("val-core/", "val-aux/").rsplit("/", 1)[0] + "/ci95"
        label = source if several else "sampled"
        found.append(_with_bounds(rows, label, name, f"{bounds}/low", f"{bounds}/high"))
    for name in greedy:
        source = name.removeprefix("val-aux/").rsplit("/", 2)[0]
        label = f"{source}, greedy" if several else "greedy"
        found.append(_with_bounds(rows, label, name, f"{name}/low", f"{name}/high"))
    return found


def _with_bounds(rows: Rows, label: str, name: str, low: str, high: str) -> Series:
    there = [row for row in rows if name in row]
    values = [row[name] for row in there]
    return Series(
        label,
        [row["step"] for row in there],
        values,
        [row.get(low, row[name]) for row in there],
        [row.get(high, row[name]) for row in there],
    )


def _signal(rows: Rows) -> list[Series]:
    """Shares of a step's groups and answers that say whether it can learn."""
    there = [row for row in rows if row.get("training/groups")]
    if not there:
        return []
    steps = [row["step"] for row in there]
    return [
        Series(
            "groups with signal", steps, [row["training/groups_with_signal"] / row["training/groups"] for row in there]
        ),
        Series("answers cut off", steps, [row["response_length/clip_ratio"] for row in there]),
    ]


PANELS: tuple[Panel, ...] = (
    Panel("Reward", "mean score of the training answers", _named("critic/score/mean")),
    Panel("Validation", "held-out prompts, band: 95% interval", _validation, markers=True),
    Panel("Signal", "share of groups whose scores differ; of answers cut off", _signal, percent=True),
    Panel("Answer length", "mean tokens per training answer", _named("response_length/mean")),
    Panel("Entropy", "of the next-token distribution, nats", _named("actor/entropy")),
    Panel("Gradient norm", "before clipping", _named("actor/grad_norm")),
    Panel("KL to the reference", "nats per token, as penalised", _named("actor/kl_loss", "actor/reward_kl_penalty")),
    Panel(
        "Sampler against trainer", "mean difference of token probabilities", _named("training/rollout_probs_diff_mean")
    ),
    Panel("Speed", "tokens per second", _named("perf/throughput")),
)
