"""Each import rule of pyproject.toml, broken once in a copy of the package that holds nothing but the break.

Rules of this file: the rules are tested as configured, through import-linter's own command; a part without a
contract is a failure too, so a new package cannot arrive without one.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = {contract["part"]: contract for contract in CONFIGURATION["contracts"]}
PARTS = [
    "core",
    "ports",
    "run",
    "models",
    "tools",
    "stores",
    "service",
    "cli",
    "agents",
    "testing",
    "app",
    "config",
]


def checked(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what import-linter says about a package made of these files, under our configuration."""
    package = folder / "fencepost"
    for part in PARTS:
        (package / part).mkdir(parents=True)
        (package / part / "__init__.py").write_text("", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    for name, text in files.items():
        (package / name).write_text(text, encoding="utf-8")
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]; from importlinter.cli import lint_imports;"
        " sys.exit(lint_imports(config_filename=sys.argv[3], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(folder), str(ROOT), str(ROOT / "pyproject.toml")],
        cwd=folder,
        env={"COLUMNS": "300", "NO_COLOR": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_import_rule_is_broken_by_what_it_forbids_and_kept_by_what_it_allows(tmp_path: Path) -> None:
    refused = [
        ("core", "asyncio"),
        ("core", "time"),
        ("core", "random"),
        ("core", "uuid"),
        ("core", "os"),
        ("core", "socket"),
        ("core", "logging"),
        ("core", "apsw"),
        ("core", "fencepost.ports"),
        ("ports", "fencepost.run"),
        ("run", "fencepost.stores"),
        ("run", "fencepost.models"),
        ("run", "fencepost.tools"),
        ("models", "fencepost.tools"),
        ("models", "fencepost.stores"),
        ("tools", "fencepost.models"),
        ("tools", "fencepost.stores"),
        ("stores", "fencepost.models"),
        ("stores", "fencepost.tools"),
        ("service", "fencepost.stores"),
        ("cli", "fencepost.stores"),
        ("cli", "fencepost.run"),
        ("agents", "fencepost.core"),
        ("agents", "fencepost.service"),
        ("testing", "fencepost.service"),
        ("config", "fencepost.run"),
        *((part, "fencepost.app") for part in PARTS if part != "app"),
    ]
    allowed = [
        ("core", "json"),
        ("core", "msgspec"),
        ("ports", "fencepost.core"),
        ("run", "fencepost.ports"),
        ("run", "asyncio"),
        ("models", "fencepost.ports"),
        ("tools", "fencepost.core"),
        ("stores", "apsw"),
        ("service", "fencepost.run"),
        ("cli", "fencepost.service"),
        ("agents", "fencepost"),
        ("testing", "fencepost.stores"),
        ("app", "fencepost.cli"),
    ]
    files: dict[str, str] = {}
    for part, imported in refused + allowed:
        name = f"{part}/imports_{imported.replace('.', '_')}.py"
        files[name] = f"import {imported}\n"
    result = checked(tmp_path, files)
    assert result.returncode == 1, result.stdout + result.stderr
    for part, imported in refused:
        module = f"fencepost.{part}.imports_{imported.replace('.', '_')}"
        assert f"{module} (line 1) imports {imported}: " in result.stdout, f"{part} may import {imported}"
    for part, imported in allowed:
        module = f"fencepost.{part}.imports_{imported.replace('.', '_')} "
        assert module not in result.stdout, f"{part} may not import {imported}"


def test_a_package_that_keeps_every_rule_passes(tmp_path: Path) -> None:
    result = checked(tmp_path, {"ports/store.py": "import fencepost.core\n"})
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_part_of_the_package_has_an_import_rule() -> None:
    inside = (ROOT / "src" / "fencepost").iterdir()
    parts = {
        path.stem for path in inside if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    }
    parts -= {"__init__", "__main__", "__pycache__"}
    without = sorted(part for part in parts if f"fencepost.{part}" not in CONTRACTS)
    assert not without, f"pyproject.toml has no import contract for: {', '.join(without)}"


@pytest.mark.parametrize("part", sorted(CONTRACTS))
def test_no_rule_lets_a_part_import_the_composition_root(part: str) -> None:
    assert "fencepost.app" not in CONTRACTS[part].get("parts", [])
