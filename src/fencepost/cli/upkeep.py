"""`prune` and `doctor`: keeping a store small and sound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fencepost.cli.command import Desk, command

if TYPE_CHECKING:
    from fencepost.service.checkup import Finding

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
# Pruned tasks that are named one by one; more are counted.
NAMED_MOST = 20


def _age(_: click.Context, option: click.Parameter, text: str) -> float | None:
    if text == "never":
        return None
    found = re.fullmatch(r"(\d{1,9})(s|min|h|d|w)", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no age; write 90s, 15min, 12h, 30d, 8w or never")
    return float(int(found[1]) * UNITS[found[2]])


def _bytes(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no size; write bytes, or 500M or 2G")
    return int(found[1]) * SIZES[found[2]]


@click.command(short_help="Drop tasks that ended long ago; tombstones stay.")
@click.option(
    "--older-than", default="30d", show_default=True, metavar="AGE", callback=_age,
    help="Drop tasks that ended so long ago: 12h, 30d, 8w; never for none.",
)  # fmt: skip
@click.option(
    "--keep-bytes", metavar="SIZE", callback=_bytes,
    help="Drop the longest ended until so much is left: 500M, 2G.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would go, and drop nothing.")
@click.option("--compact", is_flag=True, help="Rewrite the file, so that it is as small as what it holds.")
@command
async def prune(
    desk: Desk, older_than: float | None, keep_bytes: int | None, dry_run: bool, compact: bool
) -> None:
    """Drop tasks that are over: those that ended long ago, and the longest ended beyond a size.

    What is left of each is its id, why it stopped and the head of its journal's chain. A task is kept while one
    that came from it is not over. What is freed is used again; --compact also makes the file smaller, which needs
    as much room again for a while and lets no other process write meanwhile.
    """
    from fencepost.cli.documents import tombstone_document
    from fencepost.cli.text import size
    from fencepost.core.errors import StoreFull
    from fencepost.service.retention import prune as prune_tasks

    try:
        done = await prune_tasks(desk.store(), older_than=older_than, keep_bytes=keep_bytes, dry_run=dry_run)
    except StoreFull:
        if not desk.give_up_reserve():
            raise
        done = await prune_tasks(desk.store(), older_than=older_than, keep_bytes=keep_bytes, dry_run=dry_run)
        desk.err.line("The disk is full: the room that is kept for this was used.")
    if compact and not dry_run:
        await desk.store().compact()
    if not dry_run:
        desk.keep_reserve()
    if desk.json:
        desk.show({
            "pruned": [tombstone_document(stone) for stone in done.tombstones],
            "freed_bytes": done.freed_bytes,
            "stored_bytes": done.stored_bytes - (0 if dry_run else done.freed_bytes),
            "dry_run": dry_run,
        })  # fmt: skip
        return
    for stone in done.tombstones[:NAMED_MOST]:
        desk.out.line(
            (stone.id, "strong"), f"  {stone.reason.value}  {stone.agent}  {size(stone.freed_bytes)}"
        )
    if len(done.tombstones) > NAMED_MOST:
        desk.out.line((f"and {len(done.tombstones) - NAMED_MOST} more", "dim"))
    count = f"{len(done.tombstones)} task{'' if len(done.tombstones) == 1 else 's'}"
    what = "would go" if dry_run else "went"
    desk.out.line(f"{count} {what}, {size(done.freed_bytes)} of {size(done.stored_bytes)}.")


@click.command(short_help="Check the store: file, journals, results, clock, room.")
@command
async def doctor(desk: Desk) -> int:
    """Check the store and say what is wrong with it: its file, journals, totals, whole results, clock and room.

    It reads everything and changes nothing, so it takes as long as reading the file does.
    """
    from fencepost.cli.exits import Exit
    from fencepost.service.checkup import checkup, room

    found: list[Finding] = []
    async for finding in checkup(desk.store()):
        found.append(finding)
        if not desk.json:
            _tell(desk, finding)
    found.append(room(desk.store_path()))
    sound = all(finding.ok for finding in found)
    if desk.json:
        checks = [
            {
                "check": one.check,
                "ok": one.ok,
                "said": one.said if one.ok else None,
                "problems": list(one.problems),
            }
            for one in found
        ]
        desk.show({"ok": sound, "checks": checks})
    else:
        _tell(desk, found[-1])
    return Exit.OK if sound else Exit.STORE


def _tell(desk: Desk, finding: Finding) -> None:
    if finding.ok:
        desk.out.line(("ok     ", "good"), f"{finding.check}: {finding.said}")
    for problem in finding.problems:
        desk.out.line(("wrong  ", "bad"), f"{finding.check}: {problem}")
