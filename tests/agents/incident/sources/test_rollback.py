"""The rollback command, and the running of programs under it."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.agents.incident.sources.errors import OutcomeUnknown, Refused, Unavailable, Unusable
from fencepost.agents.incident.sources.process import TimedOut, run_program
from fencepost.agents.incident.sources.rollback import RollbackCommand, RollbackConfig

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def command(script: str, **changes: object) -> RollbackCommand:
    argv = ("/bin/sh", "-c", script, "sh", "{service}", "{release}")
    return RollbackCommand(RollbackConfig(command=argv, **changes))  # type: ignore[arg-type]


async def test_the_command_gets_the_values_as_whole_arguments_and_the_key_in_its_environment() -> None:
    script = 'printf "%s|%s|%s|%s" "$#" "$1" "$2" "$FENCEPOST_IDEMPOTENCY_KEY"; echo done >&2'

    said = await command(script).run("payment", "v2.4.0", key="task-1:3.1")

    assert said == {
        "command": ["/bin/sh", "-c", script, "sh", "payment", "v2.4.0"],
        "exit_code": 0,
        "stdout": "2|payment|v2.4.0|task-1:3.1",
        "stderr": "done\n",
        "cut": False,
    }


async def test_only_the_named_part_of_the_environment_is_passed_on() -> None:
    said = await command("env").run("payment", "v1", key="k")

    passed = {line.split("=", 1)[0] for line in said["stdout"].splitlines()}
    assert passed <= {
        "PATH",
        "HOME",
        "LANG",
        "KUBECONFIG",
        "FENCEPOST_IDEMPOTENCY_KEY",
        "PWD",
        "_",
        "SHLVL",
        "OLDPWD",
    }


@pytest.mark.parametrize(
    "value",
    ["", "-rf", "--force", "a b", "a;b", "$(x)", "a\nb", "a\n", "x" * 129, "é", "a\x00b", "{release}", "a'b"],
)
async def test_a_value_that_is_no_plain_name_is_refused_and_nothing_is_started(
    tmp_path: Path, value: str
) -> None:
    touched = tmp_path / "touched"
    made = command(f"touch {touched}")

    with pytest.raises(Refused, match=r"service .* is no name"):
        await made.run(value, "v1", key="k")
    with pytest.raises(Refused, match=r"release .* is no name"):
        await made.run("payment", value, key="k")

    assert not touched.exists()


@pytest.mark.parametrize(
    "value", ["payment", "v2.4.1", "team/payment_2", ".hidden", "/abs", "x" * 128, "_", "0"]
)
def test_plain_names_are_accepted(value: str) -> None:
    assert command("true").argv(value, value)[-2:] == (value, value)


async def test_only_configured_services_may_be_rolled_back_where_they_are_named() -> None:
    made = command("true", services=("payment",))

    with pytest.raises(Refused, match="'checkout' may not be rolled back from here"):
        await made.run("checkout", "v1", key="k")
    assert (await made.run("payment", "v1", key="k"))["exit_code"] == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "is empty"),
        (("",), "is empty"),
        (("deploy", "{service}"), "has no {release}"),
        (("deploy", "{release}"), "has no {service}"),
        (("deploy", "--service={service}", "{release}"), "has a placeholder inside"),
        (("{service}", "{release}"), "cannot be a placeholder"),
    ],
)
def test_a_command_that_cannot_be_right_is_refused_when_it_is_configured(
    argv: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(Refused) as refusal:
        RollbackCommand(RollbackConfig(command=argv))

    assert sentence in str(refusal.value)


async def test_a_command_that_says_it_failed_is_a_failure_with_its_last_words() -> None:
    with pytest.raises(Unusable) as failure:
        await command('echo "no such release\nat all" >&2; exit 7').run("payment", "v1", key="k")

    assert str(failure.value) == "'/bin/sh' ended with exit code 7: no such release at all"


async def test_a_command_that_is_not_there_is_said_so() -> None:
    made = RollbackCommand(RollbackConfig(command=("/nowhere/deploy", "{service}", "{release}")))

    with pytest.raises(Unavailable, match="'/nowhere/deploy' could not be started"):
        await made.run("payment", "v1", key="k")


async def test_a_command_stopped_at_its_deadline_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="check by hand whether payment now runs v1"):
        await command("exec sleep 60", seconds=0.1).run("payment", "v1", key="k")


async def test_a_command_that_was_killed_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="was killed by signal 9"):
        await command("kill -9 $$").run("payment", "v1", key="k")


async def test_output_is_cut_and_the_command_still_ends() -> None:
    said = await command("head -c 1000000 /dev/zero | tr '\\0' x", output_bytes=10).run(
        "payment", "v1", key="k"
    )

    assert (said["stdout"], said["cut"], said["exit_code"]) == ("x" * 10, True, 0)


# -- running programs -------------------------------------------------------------------------------------

BURIAL_SECONDS = 10.0
# Starts a child that shares its output, tells the child's process id, and waits.
PARENT = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"


def is_gone(pid: int) -> bool:
    """The process has ended, at the latest within the time that a busy machine needs to bury it."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ended], [], [], BURIAL_SECONDS)[0])
    finally:
        os.close(ended)


async def test_a_timeout_kills_the_program_and_its_children(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = PARENT.replace("print(c.pid, flush=True)", f"open({str(told)!r}, 'w').write(str(c.pid))")

    with pytest.raises(TimedOut):
        await run_program(
            [sys.executable, "-c", script], seconds=2.0, output_bytes=100, environment=ENVIRONMENT
        )

    assert is_gone(int(told.read_text(encoding="ascii")))


async def test_cancelling_kills_the_program_and_its_children(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    script = PARENT.replace("print(c.pid, flush=True)", f"open({str(told)!r}, 'w').write(str(c.pid))")
    running = asyncio.create_task(
        run_program([sys.executable, "-c", script], seconds=60, output_bytes=100, environment=ENVIRONMENT)
    )
    pid = int(await asyncio.to_thread(told.read_text, encoding="ascii"))  # waits until the child runs

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert is_gone(pid)


# Starts a program bound to itself, and ends only when killed.
WORKER = """
import asyncio, sys
from fencepost.agents.incident.sources.process import run_program

asyncio.run(run_program(sys.argv[1:], seconds=60, output_bytes=100, environment={}, dies_with_us=True))
"""


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="setpriv is not installed; run: apt-get install -y util-linux"
)
def test_a_killed_worker_takes_its_command_along(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    script = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    reading = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with subprocess.Popen([sys.executable, "-c", WORKER, sys.executable, "-c", script]) as worker:
            runs = select.select([reading], [], [], BURIAL_SECONDS)[0]
            worker.kill()
        assert runs, "the command did not start"
        pid = int(os.read(reading, 20))
    finally:
        os.close(reading)

    assert is_gone(pid)


def test_without_setpriv_a_command_runs_all_the_same() -> None:
    worker = WORKER.replace("asyncio.run(", "print(asyncio.run(").replace("True))", "True)).exit_code)")

    ended = subprocess.run(
        [sys.executable, "-c", worker, "/bin/true"],
        env={"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=BURIAL_SECONDS,
        check=False,
    )

    assert (ended.stdout, ended.stderr) == (b"0\n", b"")


async def test_a_child_left_behind_with_the_output_open_does_not_hold_up_the_end() -> None:
    script = "sleep 20 & echo $!; exit 3"

    ended = await run_program(
        ["/bin/sh", "-c", script], seconds=15, output_bytes=100, environment=ENVIRONMENT
    )

    os.kill(int(ended.stdout), 9)  # ours: it was let be
    assert ended.exit_code == 3


async def test_standard_input_is_empty() -> None:
    ended = await run_program(["cat"], seconds=5, output_bytes=10, environment=ENVIRONMENT)

    assert (ended.exit_code, ended.stdout) == (0, b"")
