"""The repository keeps its word: promises name tests, documents lead somewhere, commands explain themselves.

Rules of this file: it reads files of the checkout and starts nothing but git and Python.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "docs" / "contract.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
CODE = ("src", "tests", "scripts", "examples", "bench")
MOST_TARGETS = 10  # what one takes in at a glance


# --- promises --------------------------------------------------------------------------------------------


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """Return the names of all test functions in a file, methods of test classes included."""
    tree = ast.parse(path.read_bytes())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def promises(text: str) -> dict[str, list[str]]:
    """Return the references behind `held by:` for each numbered rule (`### 2.3 …`) of a contract."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^(?=#{2,3} )", text, flags=re.MULTILINE):
        heading = re.match(r"### (\d+\.\d+) ", section)
        if heading is None:
            continue
        held_by = re.search(r"^held by:(.*?)(?:\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)
        found[heading[1]] = re.findall(r"`([^`]+)`", held_by[1]) if held_by else []
    return found


def exists(reference: str, *, root: Path) -> bool:
    """Tell whether `path::test`, both with `*` allowed, names at least one test function below root."""
    path, _, name = reference.partition("::")
    return any(
        fnmatchcase(test, name or "test_*")
        for file in root.glob(path)
        if file.name.startswith("test_") or "testing" in file.parts
        for test in names_of_tests(file)
    )


def broken_promises(text: str, *, root: Path) -> list[str]:
    """Return `rule: what is missing` for every promise without a test, or with a test that is not there."""
    missing = []
    for rule, references in promises(text).items():
        if not references:
            missing.append(f"{rule}: names no test")
        missing += [f"{rule}: {reference}" for reference in references if not exists(reference, root=root)]
    return missing


def test_every_promise_names_a_test_that_exists() -> None:
    text = CONTRACT.read_text(encoding="utf-8")
    assert len(promises(text)) > 40, "the rules of docs/contract.md were not found"
    missing = broken_promises(text, root=ROOT)
    assert not missing, "docs/contract.md names tests that do not exist:\n" + "\n".join(missing)


def test_a_promise_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_cancel.py").write_text(
        "async def test_l36_cancel_closes(): ...\ndef outcome(): ...\n", encoding="utf-8"
    )
    text = """
### 1.1 Held by a test
held by: `tests/*.py::test_l36_*`, `tests/test_cancel.py::test_l36_cancel_closes`,
`tests/test_cancel.py`

### 1.2 Names no test
Only words.

### 1.3 Names a file that is gone
held by: `tests/test_gone.py::test_l36_*`

### 1.4 Names a test that is gone
held by: `tests/test_cancel.py::test_l37_*`

### 1.5 Names something that is no test
held by: `tests/test_cancel.py::outcome`
"""
    assert broken_promises(text, root=tmp_path) == [
        "1.2: names no test",
        "1.3: tests/test_gone.py::test_l36_*",
        "1.4: tests/test_cancel.py::test_l37_*",
        "1.5: tests/test_cancel.py::outcome",
    ]


# --- documents -------------------------------------------------------------------------------------------


def documents() -> list[Path]:
    """Return the Markdown files that belong to the project."""
    return [path for path in tracked_files() if path.suffix == ".md"]


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return the project's files: what git tracks, or what is there where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for folder in (*CODE, "docs", ".ci") for path in (ROOT / folder).rglob("*")]
        paths += list(ROOT.iterdir())
    return tuple(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def test_every_link_in_the_documents_leads_to_a_file() -> None:
    dead = []
    for document in documents():
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("#"):
                continue
            if not (document.parent / target.partition("#")[0]).exists():
                dead.append(f"{document.relative_to(ROOT)}: {target}")
    assert not dead, "links that lead nowhere:\n" + "\n".join(dead)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_why_what_follows_and_what_would_change_it(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "What would make us change it"]
    assert text.startswith(f"# {decision.name[:4]}. ")


def test_decisions_are_numbered_without_gaps_and_are_all_listed() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{number:04}" for number in range(1, len(DECISIONS) + 1)
    ]
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DECISIONS if f"]({path.name})" not in index] == []


# --- commands --------------------------------------------------------------------------------------------


def make_targets() -> dict[str, str]:
    """Return the Makefile's targets and the sentences beside them."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    return {
        found[1]: found[2] or "" for line in lines if (found := re.match(r"([a-z]+):(?:.*?## +(.+))?", line))
    }


def test_the_makefile_has_few_targets_and_each_explains_itself() -> None:
    targets = make_targets()
    assert {"help", "demo", "test"} <= set(targets)
    assert len(targets) <= MOST_TARGETS
    assert [name for name, sentence in targets.items() if not sentence] == []


def test_every_make_command_in_the_documents_is_a_target() -> None:
    unknown = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        for words in re.findall(r"(?:`|^|=\S+ )make ((?:[a-z]+ ?)+)(?:`|$| +#)", text, flags=re.MULTILINE):
            unknown += [
                f"{document.name}: make {word}" for word in words.split() if word not in make_targets()
            ]
    assert not unknown, unknown


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("script", [".ci/run", "scripts/make_environment"])
def test_a_script_can_be_started(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def test_make_environment_says_what_is_missing_where_there_is_no_python(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    result = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "make_environment"), str(tmp_path / "environment")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "needs Python 3.11 or newer and found none on PATH: install" in result.stderr
    assert not (tmp_path / "environment").exists()


# --- code ------------------------------------------------------------------------------------------------


def test_no_file_imports_sqlite3() -> None:
    guilty = []
    for path in tracked_files():
        if path.suffix != ".py" or b"sqlite3" not in path.read_bytes():
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            guilty += [str(path.relative_to(ROOT)) for name in names if name.split(".")[0] == "sqlite3"]
    assert not guilty, f"sqlite3 beside apsw deletes the WAL: {guilty}"


def test_no_file_records_the_address_of_a_package_registry() -> None:
    address = re.compile(
        rb"pypi\.(org|python)|pythonhosted|(extra-)?index[-_]url|registry\.npmjs|find-links", re.IGNORECASE
    )
    found = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path != Path(__file__) and address.search(path.read_bytes())
    ]
    assert not found


def test_no_lock_file_is_tracked() -> None:
    assert [
        path.name for path in tracked_files() if path.name.endswith((".lock", "lock.json", "lock.yaml"))
    ] == []


def test_importing_the_package_loads_no_http_server_or_database_package() -> None:
    program = "import fencepost, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy = {
        "apsw",
        "httpx2",
        "httpcore2",
        "h11",
        "click",
        "rich",
        "pydantic",
        "starlette",
        "sqlite3",
        "psycopg",
    }
    assert heavy.isdisjoint(result.stdout.split())


def test_the_package_is_typed_and_licensed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (ROOT / "src" / "fencepost" / "py.typed").exists()
    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
