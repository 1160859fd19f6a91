"""What tasks ask people, over all tasks: the lists of `approvals` and `outcomes`."""

from __future__ import annotations

from fencepost.cli.command import Desk
from fencepost.core.lifecycle import TaskState

# Tasks that wait for people; the oldest questions are the ones that expire first.
TASKS_LISTED = 1000


async def list_questions(desk: Desk, about: str, name: str) -> None:
    """Print every open question of one kind, with the exact arguments it is about."""
    from fencepost.cli.answers import question_lines, questions
    from fencepost.cli.documents import question_document

    store = desk.store_if_any()
    waiting = (TaskState.WAITING_APPROVAL,)
    rows = () if store is None else await store.tasks("local", states=waiting, limit=TASKS_LISTED)
    found = []
    for row in rows:
        assert store is not None
        asked = questions(await store.entries("local", row.id))
        found += [(row.id, one) for one in asked if one.ask.about == about]
    if desk.json:
        desk.show({name: [question_document(task, one) for task, one in found]})
        return
    if not found:
        desk.err.line(
            f"No task waits for {'an approval' if about == 'approval' else 'word about an outcome'}."
        )
    for task, one in found:
        desk.out.line((task, "strong"))
        desk.out.put(question_lines(one))
