"""L62 to L64 and L73: killed, stopped past the lease, and attempts that count.

The kills are SIGKILL of a process that runs the job of tests/crash/payments.py on SQLite; people who look at
the file of payments afterwards answer what became of one. L73 runs in this process, over both stores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fencepost import Limits, SqliteStore, StopReason, TaskState
from fencepost.models.scripted import call, calls, say
from fencepost.run import running
from fencepost.service.tasks import resolve_outcome
from fencepost.stores.hooks import Hooks
from fencepost.testing.pauses import Crashed, Pauses, Place, crash
from tests.conformance.conftest import OpenStore
from tests.conformance.invariants import check_task
from tests.conformance.stage import Says, Stage, results
from tests.crash import payments

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""}
HUNG_SECONDS = 60


def matrix(folder: Path, *places: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the points the whole job reaches, in order, and what became of each kill."""
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "tests.crash.matrix", str(folder), *(f"--at={place}" for place in places)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=True,
    )
    whole, *trials = map(json.loads, ran.stdout.splitlines())
    return whole["reached"], trials


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return matrix(tmp_path_factory.mktemp("whole") / "job", "before:1")[0]


def around(reached: list[str], effect: str) -> dict[str, str]:
    """The four places around the first start of a tool: the commits are named by their number."""
    began = reached.index(f"{effect}.effect.before")
    commit = reached[:began].count("append.inside")
    return {
        "before STARTED": f"append.inside:{commit}",
        "after STARTED": f"append.after:{commit}",
        "before the effect": f"{effect}.effect.before:1",
        "after the effect": f"{effect}.effect.after:1",
        "before ENDED": f"append.inside:{commit + 1}",
        "after ENDED": f"append.after:{commit + 1}",
    }


def test_l62_a_killed_write_is_not_run_or_unknown_or_not_run_again(
    tmp_path: Path, reached: list[str]
) -> None:
    places = around(reached, "pay")
    _, trials = matrix(tmp_path / "kills", *places.values())
    found = {name: (trial["left"], trial["resolved"]) for name, trial in zip(places, trials, strict=True)}
    paid = ["job:2.0 5"]
    assert found == {
        "before STARTED": ([], {}),
        "after STARTED": ([], {"2.0": "did_not_happen"}),
        "before the effect": ([], {"2.0": "did_not_happen"}),
        "after the effect": (paid, {"2.0": "happened"}),
        "before ENDED": (paid, {"2.0": "happened"}),
        "after ENDED": (paid, {}),
    }
    for trial in trials:
        assert trial["died"] == [True]
        assert trial["problems"] == []
        assert (trial["text"], trial["payments"]) == (payments.ANSWER, ["job:2.0 5", "job:3.0 7"])


def test_l63_a_killed_idempotent_call_runs_again_under_its_key_with_one_outside_effect(
    tmp_path: Path, reached: list[str]
) -> None:
    places = around(reached, "label")
    _, trials = matrix(tmp_path / "kills", *places.values())
    requests = {name: trial["label_requests"] for name, trial in zip(places, trials, strict=True)}
    once, twice = ["job:2.1"], ["job:2.1", "job:2.1"]
    assert requests == {
        "before STARTED": once,
        "after STARTED": once,
        "before the effect": once,
        "after the effect": twice,
        "before ENDED": twice,
        "after ENDED": once,
    }
    # The commit that starts the label also says that the payment before it has ended: lost, people are asked.
    asked = [trial["resolved"] for trial in trials]
    assert asked == [{"2.0": "happened"}, {}, {}, {}, {}, {}]
    for trial in trials:
        assert trial["died"] == [True]
        assert (trial["labels"], trial["problems"]) == (["job:2.1"], [])
        assert (trial["text"], trial["payments"]) == (payments.ANSWER, ["job:2.0 5", "job:3.0 7"])


# --- L64: two workers, one of them stopped


class Stopped:
    """A worker in a process of its own that has stopped itself inside a tool, and can be continued."""

    def __init__(self, folder: Path, place: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "fencepost.testing.crash", f"stop@{place}",
                "--main", "tests.crash.payments:main", "--", str(folder), "--lease", *options,
            ],
            cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> dict[str, Any]:
        """Continue it, and return what it says about its end."""
        os.kill(self._process.pid, signal.SIGCONT)
        out, _ = self._process.communicate(timeout=HUNG_SECONDS)
        told: dict[str, Any] = json.loads(out)
        return told


def an_hour_later() -> float:
    """The time of a worker whose clock finds every lease over, so that nobody has to wait for it."""
    return time.time() + 3600


async def carried_on(store: SqliteStore, folder: Path, *, reads_only: bool = False) -> running.Result:
    """What another worker makes of the job, whose lease has run out."""
    return await running.resume(
        payments.agent(folder, reads_only=reads_only), payments.TASK, store=store, lease_seconds=60
    )


async def test_l64_a_read_that_comes_back_after_the_lease_is_late_and_has_one_result(tmp_path: Path) -> None:
    stopped = Stopped(tmp_path, "stock.effect.after:3", "--reads")
    store = SqliteStore(tmp_path / "store.db", now=an_hour_later)
    second = await carried_on(store, tmp_path, reads_only=True)
    assert (second.state, second.text) == (TaskState.SUCCEEDED, payments.ANSWER_OF_READS)
    assert stopped.go_on()["outcome"] == "fenced"
    assert await store.entries("local", payments.TASK) == second.entries
    late = await store.late("local", payments.TASK)
    assert [(r.step, r.position, r.start, r.content) for r in late] == [(2, 0, 1, "stock of gears is 5")]
    await check_task(store, await store.row("local", payments.TASK), [])
    await store.close()


async def test_l64_a_payment_that_comes_back_after_the_lease_was_asked_about_and_is_not_made_again(
    tmp_path: Path,
) -> None:
    stopped = Stopped(tmp_path, "pay.effect.after:1")
    store = SqliteStore(tmp_path / "store.db", now=an_hour_later)
    waiting = await carried_on(store, tmp_path)
    assert [(ask.about, ask.step, ask.position) for ask in waiting.asks] == [("outcome", 2, 0)]
    assert stopped.go_on()["outcome"] == "fenced"
    assert await store.entries("local", payments.TASK) == waiting.entries
    assert [r.content for r in await store.late("local", payments.TASK)] == ["paid 5"]
    await resolve_outcome(store, payments.TASK, "2.0", "happened", content="paid 5")
    await store.close()
    ended = await payments.carry_on(tmp_path)
    assert ended.text == payments.ANSWER
    assert payments.lines(tmp_path / "payments") == ["job:2.0 5", "job:3.0 7"]
    ends = [body for body in results([e.body for e in ended.entries]) if (body.step, body.position) == (2, 0)]
    assert len(ends) == 1


# --- L73: what counts as an attempt


class Switch:
    """Hooks that can be set anew before each run of one store."""

    def __init__(self) -> None:
        self.hooks: Hooks | None = None

    def __call__(self, point: str) -> None:
        if self.hooks is not None:
            self.hooks(point)


async def test_l73_ten_approvals_and_ten_drained_workers_are_no_attempts(stage: Stage) -> None:
    act = stage.act()
    script = [*(calls(call("act", n=n)) for n in range(10)), say("done")]
    agent = stage.agent(script, act, boundary=Says(act="ask"), limits=Limits(steps=11))
    result = await stage.run(agent, task="t")
    for n in range(10):
        assert result.outcome == "waiting"
        await stage.decide("t", f"{n + 1}.0")
        await drained(stage, "t", agent.definition)
        result = await stage.resume(agent, "t")
    assert (result.reason, result.text) == (StopReason.COMPLETED, "done")
    assert stage.ran() == [f"act {n}" for n in range(10)]
    assert max(entry.attempt for entry in result.entries) == 1


async def drained(stage: Stage, task: str, definition: str) -> None:
    """A worker claims the task and gives it back at once, as one that shuts down does."""
    claimed = await stage.store.claim(
        "drained", lease_seconds=None, definitions={definition}, tenant="local", task=task
    )
    assert claimed is not None
    await stage.store.release(claimed.lease, seconds=claimed.row.seconds)


async def test_l73_five_kills_in_a_row_stop_the_task_and_close_its_calls(
    open_store: OpenStore, tmp_path: Path
) -> None:
    switch = Switch()
    stage = Stage(open_store(hooks=switch), tmp_path)
    act = stage.act()
    agent = stage.agent([calls(call("act", n=1), call("act", n=2))], act)
    switch.hooks = Pauses(Place("append.after", 2), crash)  # the start of the first call is durable
    with pytest.raises(Crashed):
        await stage.run(agent, task="t")
    for _ in range(4):
        switch.hooks = Pauses(Place("claim.after", 1), crash)
        with pytest.raises(Crashed):
            await stage.resume(agent, "t", take_over=True)
    assert (await stage.store.row("local", "t")).attempts == 5
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.TOO_MANY_ATTEMPTS)
    statuses = [body.status.value for body in results([entry.body for entry in result.entries])]
    assert statuses == ["unknown", "not_executed"]
    assert stage.ran() == []
    await stage.verify()
    await stage.store.close()
