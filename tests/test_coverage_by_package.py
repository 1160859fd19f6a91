"""The coverage table: which package a file belongs to, and when a bound is broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from scripts.coverage_by_package import main, package_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def measured(lines: tuple[int, int], branches: tuple[int, int]) -> dict[str, object]:
    """Return one file of a coverage report with (all, covered) lines and branches."""
    return {
        "summary": {
            "num_statements": lines[0],
            "covered_lines": lines[1],
            "num_branches": branches[0],
            "covered_branches": branches[1],
        },
        "missing_lines": [7] if lines[1] < lines[0] else [],
        "missing_branches": [[3, -1]] if branches[1] < branches[0] else [],
    }


def report(folder: Path, files: Mapping[str, object]) -> str:
    """Write a coverage report of these files and return its path."""
    path = folder / "coverage.json"
    path.write_text(json.dumps({"files": files}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("src/fencepost/core/state.py", "core"),
        ("src/fencepost/agents/incident/playbook.py", "agents"),
        ("src/fencepost/ports.py", "(root)"),
        ("/home/fencepost/checkout/src/fencepost/run/loop.py", "run"),
    ],
)
def test_a_file_counts_for_the_folder_directly_under_the_package(path: str, package: str) -> None:
    assert package_of(path) == package


def test_the_files_of_a_package_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "src/fencepost/core/a.py": measured((10, 10), (4, 4)),
        "src/fencepost/core/b.py": measured((10, 5), (0, 0)),
        "src/fencepost/ports.py": measured((3, 3), (0, 0)),
    }
    assert main([report(tmp_path, files)]) == 0
    _, root, core = capsys.readouterr().out.splitlines()
    assert root.split() == ["(root)", "3", "100.0%", "0", "100.0%"]
    assert core.split() == ["core", "20", "75.0%", "4", "100.0%"]


def test_a_branch_that_was_not_taken_breaks_the_bound_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"src/fencepost/core/a.py": measured((10, 10), (1000, 999))}
    assert main([report(tmp_path, files), "--require", "core=100"]) == 1
    assert "src/fencepost/core/a.py branch 3 to exit" in capsys.readouterr().out


def test_a_line_that_did_not_run_breaks_the_bound_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"src/fencepost/core/a.py": measured((10, 9), (4, 4))}
    assert main([report(tmp_path, files), "--require", "core=100"]) == 1
    assert "src/fencepost/core/a.py line 7" in capsys.readouterr().out


def test_a_package_at_its_bound_passes_whatever_the_others_are(tmp_path: Path) -> None:
    files = {
        "src/fencepost/core/a.py": measured((10, 10), (4, 4)),
        "src/fencepost/cli/a.py": measured((10, 0), (4, 0)),
    }
    assert main([report(tmp_path, files), "--require", "core=100"]) == 0


def test_a_required_package_that_was_not_measured_breaks_its_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"src/fencepost/core/a.py": measured((10, 10), (4, 4))}
    assert main([report(tmp_path, files), "--require", "run=100"]) == 1
    assert "run: nothing of it was measured" in capsys.readouterr().out


def test_a_report_without_branches_is_refused(tmp_path: Path) -> None:
    files = {"src/fencepost/core/a.py": {"summary": {"num_statements": 1, "covered_lines": 1}}}
    with pytest.raises(SystemExit, match="has no branches"):
        main([report(tmp_path, files)])


def test_a_missing_report_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 1
    assert "run `make test` first" in capsys.readouterr().out
