"""What `python -m bench.diagnosis` promises on the recorded incidents, where they are present."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import diagnosis as bench


@pytest.mark.needs_data
def test_the_recorded_faults_are_named_as_often_and_wrongly_as_seldom_as_promised(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = bench.main([str(shared_data / "incident")])

    lines = capsys.readouterr().out.splitlines()
    said = json.loads(lines[-1])
    assert code == 0
    assert said["nezha_cpu"]["cases"] == 14
    assert said["nezha_cpu"]["first"] >= 12
    assert said["nezha_cpu"]["distinct"] == 13
    assert said["wrong_share"] <= 0.10
    assert said["quiet"]["nezha"] == {"windows": 37, "named": 0}
    assert said["quiet"]["petshop"] == {"windows": 12, "named": 0}
    shown = {tuple(row) for line in lines if (row := line.split())[:1] in (["nezha"], ["petshop"])}
    assert len(shown) == 7
    assert shown <= rows_of_the_page(), "bench/README.md shows other figures"


def rows_of_the_page() -> set[tuple[str, ...]]:
    page = (Path(bench.__file__).parent / "README.md").read_text(encoding="utf-8")
    return {
        tuple(line.lower().strip("| ").split(" | ")) for line in page.split("\n") if line.startswith("| ")
    }


def test_a_folder_without_the_incidents_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([str(tmp_path)]) == 2
    assert capsys.readouterr().out.startswith(f"{tmp_path} has no nezha and petshop folders")
