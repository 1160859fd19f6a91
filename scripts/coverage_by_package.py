"""Print line and branch coverage for each package of Fencepost, and fail where a package is under its bound.

Rules of this file:

- The input is the JSON that `coverage json` writes with branches measured.
- A package is a folder directly under `src/fencepost`; modules directly there are the package `(root)`.
- `--require core=100` fails when core's lines or its branches are covered less, or when no file of core was
  measured: a bound that silently measures nothing would hold for ever.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT_PACKAGE = "fencepost"
ROOT_MODULES = "(root)"


@dataclass
class Covered:
    """What was run of one package, in lines and in branches, and which files leave something out."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0
    gaps: tuple[str, ...] = ()

    @property
    def line_percent(self) -> float:
        """Return the share of lines that ran; a package without lines is covered."""
        return 100.0 * self.lines_run / self.lines if self.lines else 100.0

    @property
    def branch_percent(self) -> float:
        """Return the share of branches that were taken; a package without branches is covered."""
        return 100.0 * self.branches_run / self.branches if self.branches else 100.0


def package_of(path: str) -> str:
    """Return the package a measured file belongs to, or `(root)` for a module directly under fencepost."""
    parts = Path(path).parts
    inside = parts[len(parts) - parts[::-1].index(ROOT_PACKAGE) :] if ROOT_PACKAGE in parts else parts
    return inside[0] if len(inside) > 1 else ROOT_MODULES


def by_package(report: dict[str, object]) -> dict[str, Covered]:
    """Return the coverage of each package in a coverage JSON report, sorted by name."""
    packages: dict[str, Covered] = defaultdict(Covered)
    files = report["files"]
    assert isinstance(files, dict)
    for path, measured in files.items():
        summary = measured["summary"]
        if "num_branches" not in summary:
            sys.exit("coverage_by_package: the report has no branches; run coverage with branch = true")
        package = packages[package_of(path)]
        package.lines += summary["num_statements"]
        package.lines_run += summary["covered_lines"]
        package.branches += summary["num_branches"]
        package.branches_run += summary["covered_branches"]
        package.gaps += tuple(_gaps(path, measured))
    return dict(sorted(packages.items()))


def failures(packages: dict[str, Covered], bounds: dict[str, float]) -> list[str]:
    """Return one sentence for each package that is under its bound, or was not measured at all."""
    found = []
    for name, bound in bounds.items():
        package = packages.get(name)
        if package is None or package.lines == 0:
            found.append(f"{name}: nothing of it was measured, but {bound:g} % is required")
        elif package.branch_percent < bound or package.line_percent < bound:
            gaps = "; ".join(package.gaps)
            found.append(
                f"{name}: {package.line_percent:.2f} % of lines and {package.branch_percent:.2f} % of"
                f" branches, but {bound:g} % is required. Not covered: {gaps}"
            )
    return found


def table(packages: dict[str, Covered]) -> str:
    """Return the table that is printed: a row for each package."""
    rows = [f"{'package':<14}{'lines':>8}{'covered':>9}{'branches':>10}{'covered':>9}"]
    rows += [
        f"{name:<14}{found.lines:>8}{found.line_percent:>8.1f}%{found.branches:>10}{found.branch_percent:>8.1f}%"
        for name, found in packages.items()
    ]
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Print the table and return 0, or 1 when a required package is under its bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("report", type=Path, help="the JSON report, as written by: coverage json")
    parser.add_argument("--require", action="append", default=[], metavar="PACKAGE=PERCENT", type=_bound)
    options = parser.parse_args(arguments)
    try:
        report = json.loads(options.report.read_bytes())
    except OSError as problem:
        print(f"coverage_by_package: cannot read {options.report}: {problem.strerror}; run `make test` first")
        return 1
    packages = by_package(report)
    print(table(packages))
    under = failures(packages, dict(options.require))
    for sentence in under:
        print(f"UNDER ITS BOUND  {sentence}")
    return 1 if under else 0


def _bound(text: str) -> tuple[str, float]:
    name, _, percent = text.partition("=")
    return name, float(percent)


def _gaps(path: str, measured: dict[str, list[object]]) -> list[str]:
    gaps = [f"{path} line {line}" for line in measured.get("missing_lines", [])]
    for branch in measured.get("missing_branches", []):
        assert isinstance(branch, list)
        start, end = branch
        gaps.append(f"{path} branch {start} to {'exit' if end < 0 else end}")
    return gaps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
