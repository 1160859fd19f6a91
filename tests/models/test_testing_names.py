"""The public names of `fencepost.testing` are there, lazily (testing/__init__.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fencepost import testing

SRC = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_name_of_testing_is_there(name: str) -> None:
    assert getattr(testing, name) is not None
    assert name in dir(testing)


def test_a_name_that_is_not_there_is_refused_like_any_other() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sleep'"):
        testing.Sleep  # noqa: B018 - the access is the test


def test_importing_testing_opens_no_database_library() -> None:
    program = "import sys, fencepost.testing; sys.exit('apsw' in sys.modules or 'pytest' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(SRC)}, check=False).returncode
        == 0
    )
