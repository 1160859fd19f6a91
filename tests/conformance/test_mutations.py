"""Every row's tests fail when the line that keeps its promise is changed: one mutation a row.

Rule 1: a mutated copy of the package is tested in a process of its own; this checkout is never changed.
Rule 2: only "tests ran and some failed" counts: a mutant that cannot be imported proves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fencepost"
ROWS = Path(__file__).parent
# As many processes as the smallest machine we build on has cores.
AT_ONCE = 2
# A mutant whose tests take longer hangs, and a row that can only hang is not held by its tests. Seconds.
MUTANT_SECONDS = 120
# Long enough for a body that will come, in a mutant in which it may not. Seconds.
HUNG_SECONDS = "2"

Probe = Callable[[str], "tuple[int, str]"]


def mutated(mutation: Mutation) -> str:
    """The file's text with the mutation in it; says what to do when its place is gone."""
    text = (PACKAGE / mutation.file).read_text(encoding="utf-8")
    count = text.count(mutation.old)
    assert count == 1, (
        f"{mutation.file} holds this text {count} times, wanted once: {mutation.old!r};"
        " change the row's mutation in tests/conformance/mutations.py along with the code"
    )
    return text.replace(mutation.old, mutation.new)


def run_mutant(row: str) -> tuple[int, str]:
    """(exit status, output) of the row's tests over a mutated copy of the package."""
    mutation = MUTATIONS[row]
    with tempfile.TemporaryDirectory(prefix=f"fencepost-{row}-") as folder:
        copy = Path(folder, "src", "fencepost")
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        copy.joinpath(mutation.file).write_text(mutated(mutation), encoding="utf-8")
        command = [
            sys.executable, "-B", "-m", "pytest", str(ROWS), "-x", "-q", "-p", "no:cacheprovider",
            "-k", f"test_{row.lower()}_", "-m", "not slow",
            "-o", f"pythonpath={copy.parent} {ROOT}", f"--basetemp={folder}/tmp",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(copy.parent), "FENCEPOST_HUNG_SECONDS": HUNG_SECONDS}
        environment.pop("CI", None)
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MUTANT_SECONDS,
            check=False,
        )
    return done.returncode, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.fixture(scope="module")
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    """Ask for a row's outcome; the rows of this session are tried two at a time, in their order."""
    if hasattr(request.config, "workerinput"):  # several processes share the rows already
        yield run_mutant
        return
    rows = [
        str(item.callspec.params["row"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_a_mutant_is_noticed"
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes: dict[str, Future[tuple[int, str]]] = {row: pool.submit(run_mutant, row) for row in rows}
        yield lambda row: outcomes[row].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize("row", MUTATIONS)
def test_a_mutant_is_noticed(probe: Probe, row: str) -> None:
    status, output = probe(row)
    assert status == 1, f"row {row} does not notice its mutation (pytest exit status {status}):\n{output}"


@pytest.mark.parametrize("row", MUTATIONS)
def test_every_mutation_has_its_place_and_changes_it(row: str) -> None:
    compile(mutated(MUTATIONS[row]), MUTATIONS[row].file, "exec")


def test_every_row_with_tests_has_a_mutation_and_every_mutation_has_tests() -> None:
    named = {
        f"L{number}"
        for file in ROWS.glob("test_*.py")
        for number in re.findall(
            r"^(?:async )?def test_l(\d\d)_", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    # Rows about processes that are killed or stopped are held by real signals, not by mutants of ours.
    signals = {"L62", "L63", "L64", "L73"}
    assert named - signals == set(MUTATIONS) - signals
