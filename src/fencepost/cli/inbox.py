"""What tasks ask people, over all tasks: the lists of `approvals` and `outcomes`."""

from __future__ import annotations

from fencepost.cli.command import Desk
from fencepost.core.errors import StoreCorrupt
from fencepost.core.lifecycle import TaskState

# Tasks that wait for people; the oldest questions are the ones that expire first.
TASKS_LISTED = 1000


async def list_questions(desk: Desk, about: str, name: str) -> int:
    """Print every open question of one kind, its exact arguments and what answers it; returns the exit code.

    A task whose journal is damaged is named, and does not hide the questions of the others.
    """
    from fencepost.cli.answers import questions
    from fencepost.cli.documents import question_document
    from fencepost.cli.exits import Exit
    from fencepost.cli.reports import asking_lines

    store = desk.store_if_any()
    waiting = (TaskState.WAITING_APPROVAL,)
    rows = () if store is None else await store.tasks("local", states=waiting, limit=TASKS_LISTED)
    found, code = [], Exit.OK
    for row in rows:
        assert store is not None
        try:
            asked = questions(await store.entries("local", row.id))
        except StoreCorrupt as why:
            desk.err.line(("fencepost: ", "bad"), f"task {row.id}: {why}")
            code = Exit.STORE
            continue
        found += [(row.id, one) for one in asked if one.ask.about == about]
    if desk.json:
        desk.show({name: [question_document(task, one) for task, one in found]})
        return code
    if store is None:
        desk.err.line(desk.no_store())
    elif not found:
        desk.err.line(
            f"No task waits for {'an approval' if about == 'approval' else 'word about an outcome'}."
        )
    for task, one in found:
        desk.out.line((task, "strong"))
        desk.out.put(asking_lines(task, one, desk.hint))
    return code
