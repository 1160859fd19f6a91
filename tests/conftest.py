"""What every test shares: the async backend, what may be missing on a machine, and which skips CI accepts.

Rules of this file:

- A test that needs something of the machine says so with a mark (`needs_prometheus`, `needs_data`). Where it
  is missing the test skips, and the reason contains the command that brings it.
- `FENCEPOST_REQUIRE=prometheus` (a comma between several) turns that skip into a failure.
- With `CI=true`, a skip that `.ci/allowed-skips.txt` does not name fails the run, because a test that nobody
  sees skipping is a promise that nobody holds.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ALLOWED_SKIPS = Path(".ci", "allowed-skips.txt")
REQUIRE = "FENCEPOST_REQUIRE"
DATA = "FENCEPOST_DATA"
PROMETHEUS_COMMANDS = ("prometheus", "promtool")
PROMETHEUS_MISSING = "prometheus is not installed; run: apt-get update && apt-get install -y prometheus"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Name the one event loop that Fencepost supports."""
    return "asyncio"


@pytest.fixture(scope="session")
def shared_data(pytestconfig: pytest.Config) -> Path:
    """Return the folder of recorded incidents, or skip the test where there is none."""
    folder = data_folder(pytestconfig.rootpath)
    if not folder.is_dir():
        _skip_or_fail("data", f"no shared data at {folder}; run: {DATA}=/folder/of/data make test")
    return folder


def data_folder(root: Path) -> Path:
    """Return where the recorded incidents are looked for; the folder need not exist."""
    named = os.environ.get(DATA)
    return Path(named) if named else root.parent / "shared" / "data"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test, with the command to run, where the machine lacks what the mark names."""
    if item.get_closest_marker("needs_prometheus") and not all(map(shutil.which, PROMETHEUS_COMMANDS)):
        _skip_or_fail("prometheus", PROMETHEUS_MISSING)
    if item.get_closest_marker("needs_data"):
        folder = data_folder(item.config.rootpath)
        if not folder.is_dir():
            _skip_or_fail("data", f"no shared data at {folder}; run: {DATA}=/folder/of/data make test")


def _skip_or_fail(need: str, reason: str) -> None:
    if need in os.environ.get(REQUIRE, "").split(","):
        pytest.fail(f"{reason} ({REQUIRE} names {need}, so this is not a skip)", pytrace=False)
    pytest.skip(reason)


# --- the skips that CI accepts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AllowedSkip:
    """One line of the list: which test may skip with which reason (`*` matches anything), and why."""

    test: str
    reason: str
    why: str

    def covers(self, test: str, reason: str) -> bool:
        """Tell whether this line allows the test to skip with that reason."""
        return fnmatchcase(test, self.test) and fnmatchcase(reason, self.reason)


def allowed_skips(lines: Iterable[str]) -> list[AllowedSkip]:
    """Return the list, or raise ValueError that names the line which is not `test | reason | why`."""
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = tuple(field.strip() for field in line.split("|"))
        if len(fields) != 3 or not all(fields):
            message = f"{ALLOWED_SKIPS}, line {number}: write it as: test id | reason | why it is allowed"
            raise ValueError(message)
        found.append(AllowedSkip(*fields))
    return found


class SkipGate:
    """Collects every skip of the run and fails the run for those that the list does not allow."""

    def __init__(self, allowed: list[AllowedSkip]) -> None:
        self.allowed = allowed
        self.refused: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(line.covers(report.nodeid, reason) for line in self.allowed):
            self.refused.append((report.nodeid, reason))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.refused:
            return
        terminalreporter.section("skips that CI does not accept", red=True)
        for test, reason in self.refused:
            terminalreporter.write_line(f"{test}: {reason}")
        terminalreporter.write_line(f"Make the test run here, or name it in {ALLOWED_SKIPS} with the reason.")


def pytest_configure(config: pytest.Config) -> None:
    """Put the gate in place, in CI only, and only in the process that reports."""
    if os.environ.get("CI") != "true" or hasattr(config, "workerinput"):
        return
    path = config.rootpath / ALLOWED_SKIPS
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        config.pluginmanager.register(SkipGate(allowed_skips(lines)), "fencepost-skip-gate")
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from problem
