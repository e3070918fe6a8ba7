"""Results of load tests: JSON for machines, a table for the terminal, a plot for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

mpl.use("Agg")

from matplotlib import pyplot as plt
from workload import RESULTS, machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["plot_bars", "plot_histogram", "print_table", "save"]


def save(name: str, settings: Mapping[str, Any], figures: Mapping[str, Any]) -> Path:
    """Write `load-tests/results/NAME.json`: when, on what machine, with which settings, what came out."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": settings,
        "figures": figures,
    }
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")
    return path


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> None:
    """Print a table; numbers stand right."""
    table = Table(title=title, caption=caption, caption_justify="left")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,.2f}" if isinstance(cell, float) else f"{cell}" for cell in row))
    Console(width=140).print(table)


def plot_bars(name: str, title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> Path:
    """Grouped bars: `groups[GROUP][SERIES]`. Writes `load-tests/results/NAME.png`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(series)
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for index, each in enumerate(series):
        places = [place + index * width for place in range(len(groups))]
        bars = axes.bar(places, [group.get(each, 0.0) for group in groups.values()], width, label=each)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks([place + width * (len(series) - 1) / 2 for place in range(len(groups))], list(groups))
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=10)
    axes.legend()
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def plot_histogram(name: str, title: str, unit: str, values: Sequence[float], marks: Mapping[str, float]) -> Path:
    """A histogram with named vertical lines. Writes `load-tests/results/NAME.png`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axes.hist(values, bins=120, log=True)
    for label, at in marks.items():
        axes.axvline(at, linestyle="--", color="black", linewidth=1)
        axes.annotate(f"{label} {at:.1f}", (at, axes.get_ylim()[1]), fontsize=8, rotation=90, va="top", ha="right")
    axes.set_xlabel(unit)
    axes.set_ylabel("lines")
    axes.set_title(title, fontsize=10)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
