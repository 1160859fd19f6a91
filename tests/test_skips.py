"""The skip rules of conftest.py: a need that is missing names its command, and CI accepts no unlisted skip.

Rules of this file: each test runs pytest in a process of its own on a small project that holds this project's
conftest.py, so that what is tested is what CI runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SKIPS = """
import pytest

def test_that_runs():
    pass

@pytest.mark.xfail(strict=True)
def test_that_is_expected_to_fail():
    assert 1 == 2

def test_that_skips():
    pytest.skip("no printer; run: buy one")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with our conftest, an empty list of allowed skips, and one test that skips."""
    (tmp_path / "tests").mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests" / "conftest.py")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest]\ntestpaths = ['tests']\nmarkers = ['needs_data: x', 'needs_prometheus: x']\n"
        "addopts = ['-rs', '-p', 'no:cacheprovider']\n",
        encoding="utf-8",
    )
    allow(tmp_path, "")
    (tmp_path / "tests" / "test_skips.py").write_text(SKIPS, encoding="utf-8")
    return tmp_path


def allow(project: Path, text: str) -> None:
    """Write the project's list of allowed skips."""
    (project / ".ci" / "allowed-skips.txt").write_text(text, encoding="utf-8")


def outcome(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the finished pytest run of the project; PATH and the given variables are all it sees."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=project,
        env={"PATH": os.environ["PATH"], "COLUMNS": "300", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_in_ci_a_skip_that_is_not_listed_fails_the_run_and_is_named(project: Path, workers: str) -> None:
    result = outcome(project, "-n", workers, CI="true")
    assert result.returncode == 1, result.stdout
    assert "tests/test_skips.py::test_that_skips: no printer; run: buy one" in result.stdout
    assert "test_that_is_expected_to_fail: " not in result.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_in_ci_a_listed_skip_passes(project: Path, workers: str) -> None:
    allow(project, "# a remark\n\ntests/test_skips.py::* | no printer* | paper is expensive\n")
    result = outcome(project, "-n", workers, CI="true")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "line",
    ["tests/other.py::* | no printer* | another test", "* | no scanner* | another reason"],
    ids=["another test", "another reason"],
)
def test_in_ci_a_line_about_something_else_allows_nothing(project: Path, line: str) -> None:
    allow(project, line)
    assert outcome(project, CI="true").returncode == 1


def test_in_ci_a_file_that_skips_while_it_is_collected_fails_the_run_too(project: Path) -> None:
    text = "import pytest\npytest.skip('no moon; run: wait', allow_module_level=True)\n"
    (project / "tests" / "test_skips.py").write_text(text, encoding="utf-8")
    result = outcome(project, CI="true")
    assert result.returncode == 1, result.stdout
    assert "no moon; run: wait" in result.stdout


def test_outside_ci_a_skip_is_only_shown(project: Path) -> None:
    assert outcome(project).returncode == 0


def test_a_line_without_a_reason_is_refused_with_its_number(project: Path) -> None:
    allow(project, "# a remark\ntests/test_skips.py::* | no printer*\n")
    result = outcome(project, CI="true")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "allowed-skips.txt, line 2: write it as: test id | reason | why it is allowed" in result.stderr


NEEDS = """
import pytest

@pytest.mark.needs_prometheus
def test_with_prometheus():
    pass

@pytest.mark.needs_data
def test_with_data():
    pass

def test_with_the_folder(shared_data):
    assert shared_data.is_dir()
"""


def test_what_is_missing_skips_with_the_command_that_brings_it(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "test_skips.py").write_text(NEEDS, encoding="utf-8")
    missing = tmp_path / "nowhere"
    result = outcome(project, PATH="", FENCEPOST_DATA=str(missing))
    assert result.returncode == 0, result.stdout
    assert "3 skipped" in result.stdout
    assert (
        "prometheus is not installed; run: apt-get update && apt-get install -y prometheus" in result.stdout
    )
    assert f"no shared data at {missing}; run: FENCEPOST_DATA=/folder/of/data make test" in result.stdout


def test_what_is_there_runs(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "test_skips.py").write_text(NEEDS, encoding="utf-8")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("prometheus", "promtool"):
        (commands / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    result = outcome(project, PATH=str(commands), FENCEPOST_DATA=str(tmp_path))
    assert "3 passed" in result.stdout


def test_a_need_that_is_required_fails_instead_of_skipping(project: Path, tmp_path: Path) -> None:
    (project / "tests" / "test_skips.py").write_text(NEEDS, encoding="utf-8")
    missing = str(tmp_path / "nowhere")
    result = outcome(project, PATH="", FENCEPOST_DATA=missing, FENCEPOST_REQUIRE="prometheus,data")
    assert result.returncode == 1
    assert "0 skipped" not in result.stdout
    assert "FENCEPOST_REQUIRE names prometheus, so this is not a skip" in result.stdout
    assert "FENCEPOST_REQUIRE names data, so this is not a skip" in result.stdout


def test_the_projects_own_list_can_be_read(project: Path) -> None:
    shutil.copy(ROOT / ".ci" / "allowed-skips.txt", project / ".ci" / "allowed-skips.txt")
    result = outcome(project, CI="true")
    assert result.returncode == 1, result.stderr
    assert "no printer" in result.stdout
