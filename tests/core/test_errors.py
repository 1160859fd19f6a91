"""The tree of exceptions is the one drawn in its module, and each code names one of them."""

from __future__ import annotations

import re

from fencepost.core import errors
from fencepost.core.errors import (
    FencepostError,
    JsonInvalid,
    ModelFailed,
    OperationTaken,
    StoreFailed,
)
from fencepost.core.messages import Usage

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FencepostError)]


def drawn() -> dict[str, str]:
    """Each class of the drawing, by the class above it."""
    path, parents = [""], {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: {2,}.*)?$", line)
        if found:
            depth = len(found[1]) // 4
            path[depth + 1 :] = [found[2]]
            parents[found[2]] = path[depth]
    return parents


def test_the_drawing_shows_every_exception_below_its_parent() -> None:
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in ALL}
    assert drawn() == {**real, "FencepostError": ""}


def test_every_exception_has_a_code_of_its_own() -> None:
    assert len({kind.code for kind in ALL}) == len(ALL)


def test_what_a_caller_acts_on_is_carried() -> None:
    failed = ModelFailed(
        "busy", kind="status", retriable=True, status=429, retry_after=2.0, usage=Usage(1, 2)
    )
    assert (failed.kind, failed.retriable, failed.status, failed.retry_after) == ("status", True, 429, 2.0)
    assert failed.usage == Usage(1, 2)
    assert not ModelFailed("no").retriable
    taken = OperationTaken("pay-7 is taken", status="succeeded", content="paid")
    assert (str(taken), taken.status, taken.content) == ("pay-7 is taken", "succeeded", "paid")
    assert JsonInvalid("no", path="$.a").path == "$.a"
    assert JsonInvalid("no").path == "$"


def test_a_lost_task_and_a_failed_commit_are_never_the_same() -> None:
    assert not issubclass(errors.Fenced, StoreFailed)
    assert not issubclass(StoreFailed, errors.Fenced)
