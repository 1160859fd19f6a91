"""What the benches share: interleaved rounds, medians, one table and one line of JSON at the end."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence

Row = dict[str, object]


def rounds(subjects: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Each subject's seconds in each round; the subjects take turns, so that noise hits all of them."""
    for subject in subjects.values():
        subject()
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(count):
        for name, subject in subjects.items():
            taken[name].append(subject())
    return taken


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(headings) + " |")
    print("|" + "---|" * len(headings))
    for row in rows:
        print(
            "| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |"
        )


def machine() -> Row:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def finish(bench: str, results: Row) -> None:
    """Print the one line of JSON that ends a bench."""
    sys.stdout.flush()
    print(json.dumps({"bench": bench, **results, "machine": machine()}, sort_keys=True))
