"""Every wrong argument, file, agent, setting and store: one sentence, a stable code, and nothing lost."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import AGENTS, Command, Done

INCIDENT = ("run", "incident", "why?")
SERVER = ("--prometheus", "http://127.0.0.1:9")


def one_sentence(done: Done, code: int, *words: str) -> None:
    """The command ended with this code and said just one line, with these words in it."""
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith("fencepost: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-command",), ("No such command 'no-such-command'", "see `fencepost --help`")),
        (("show",), ("Missing argument 'TASK'", "see `fencepost show --help`")),
        (("list", "--limit", "0"), ("0 is not in the range",)),
        (("list", "--state", "asleep"), ("there is no state 'asleep'", "PENDING, RUNNING")),
        (("list", "--nonsense"), ("No such option", "--nonsense")),
        (("--store", "x.db", "list"), ("--store stands after the command",)),
        (("--nonsense", "list"), ("No such option", "--nonsense")),
        (("approvals", "nonsense"), ("No such command 'nonsense'",)),
        (("run", "nobody", "x"), ("there is no agent 'nobody'", "incident", "module:attribute")),
        (("run", "no_such_module_here:x", "x"), ("there is no module no_such_module_here",)),
        (("run", "nowhere.py:x", "x"), ("nowhere.py; name a Python file that defines",)),
        (("run", "mine.py", "x"), ("mine.py is a file; name the agent in it too, as in mine.py:agent",)),
        (("run", f"{AGENTS}:", "x"), ("names no agent; write module:attribute",)),
        (("run", f"{AGENTS}:plane", "x"), ("has no attribute 'plane'; did you mean plain?",)),
        (("run", f"{AGENTS}:not_an_agent", "x"), ("is a int; it must be a fencepost.Agent",)),
        (("run", f"{AGENTS}:needs_arguments", "x"), ("needs arguments",)),
        (("run", f"{AGENTS}:is_async", "x"), ("is async",)),
        (("run", f"{AGENTS}:breaks", "x"), ("RuntimeError: there is nothing to see", "line ")),
        (("run", f"{AGENTS}:no_steps", "x"), ("limits.steps must be above 0",)),
        (("run", f"{AGENTS}:plain", "   "), ("the prompt is empty",)),
        (("run", f"{AGENTS}:plain", "x" * 100_001), ("the prompt has 100001 characters",)),
        (("run", f"{AGENTS}:plain", "x", "--logs", "."), ("--logs: only the agent incident takes that",)),
        (("run", f"{AGENTS}:plain", "x", "--rules", "/nowhere.toml"),
         ("/nowhere.toml: the rules cannot be read",)),
        ((*INCIDENT, "--prometheus", "http://me:word@127.0.0.1:9"), ("has a user or password in it",)),
        (INCIDENT, ("needs --prometheus, --logs, --releases",)),
        ((*INCIDENT, *SERVER, "--logs", "/nowhere", "--releases", "/nowhere"),
         ("the agent incident cannot be made",)),
        ((*INCIDENT, *SERVER, "--logs", ".", "--releases", ".", "--model", "gpt"),
         ("the model 'gpt' cannot be used", "playbook")),
    ],
)  # fmt: skip
def test_a_wrong_argument_gets_one_sentence(
    fencepost: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = fencepost(*arguments)
    one_sentence(done, 2, *words)
    assert fencepost("list", "--json").document["tasks"] == []


def test_a_module_that_cannot_be_imported_is_told_with_its_line(fencepost: Command) -> None:
    broken = fencepost.folder / "broken_agent_file.py"
    broken.write_text("x = 1\nraise ValueError('no config')\n")
    one_sentence(fencepost("run", f"{broken}:x", "x"), 2, "ValueError: no config", f"{broken} line 2")
    broken.write_text("def broken(:\n")
    one_sentence(fencepost("run", f"{broken}:x", "x"), 2, "invalid syntax, line 1")
    broken.write_text("raise SystemExit(3)\n")
    one_sentence(fencepost("run", f"{broken}:x", "x"), 2, "SystemExit: 3")


def test_what_a_module_prints_while_it_is_imported_does_not_reach_stdout(fencepost: Command) -> None:
    loud = fencepost.folder / "loud_agent_file.py"
    loud.write_text(f"print('\\x1b[2Jhello')\nimport sys\nsys.path.insert(0, {str(AGENTS.parents[2])!r})\n"
                    "from tests.cli.agents_for_tests import plain\n")  # fmt: skip
    done = fencepost("run", f"{loud}:plain", "x", "--json")
    assert done.document["task"]["state"] == "SUCCEEDED"
    assert "│ \\u001b[2Jhello\n" in done.err


def test_an_error_is_a_json_document_too_where_json_is_wanted(fencepost: Command) -> None:
    fencepost.run("plain")
    done = fencepost("show", "nope", "--json")
    assert done.code == 5
    assert done.document == {
        "error": {
            "code": "not_found", "message": "there is no task 'nope'; `fencepost list` shows which there are",
        }
    }  # fmt: skip
    assert fencepost("show", "--json").document["error"]["code"] == "usage"


def test_debug_shows_the_traceback_and_only_debug_does(fencepost: Command) -> None:
    quiet = fencepost("run", f"{AGENTS}:breaks", "x")
    loud = fencepost("run", f"{AGENTS}:breaks", "x", FENCEPOST_DEBUG="1")
    assert "Traceback" not in quiet.err
    assert "Traceback (most recent call last)" in loud.err
    assert loud.code == quiet.code == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FENCEPOST_STROE", "x", "which is no setting; did you mean FENCEPOST_STORE?"),
        ("FENCEPOST_TELEMETRY", "x", "there are FENCEPOST_STORE and FENCEPOST_DEBUG; unset it"),
        ("FENCEPOST_DEBUG", "maybe", "FENCEPOST_DEBUG is 'maybe'; set it to 1"),
    ],
)
def test_a_wrong_setting_is_named(fencepost: Command, name: str, value: str, words: str) -> None:
    one_sentence(fencepost("list", **{name: value}), 2, words)


def test_the_store_is_in_the_state_folder_of_the_user_unless_said_otherwise(fencepost: Command) -> None:
    del fencepost.environment["FENCEPOST_STORE"]
    assert fencepost.run("plain").code == 0
    own = fencepost.folder / ".local/state/fencepost/fencepost.db"
    assert own.is_file()
    assert own.parent.stat().st_mode & 0o777 == 0o700
    state = fencepost.folder / "state"
    assert (
        fencepost.run(
            "plain",
        ).code
        == 0
    )
    fencepost.environment["XDG_STATE_HOME"] = str(state)
    assert fencepost.run("plain").code == 0
    assert (state / "fencepost/fencepost.db").is_file()


def test_without_any_home_the_setting_to_make_is_named(fencepost: Command) -> None:
    del fencepost.environment["FENCEPOST_STORE"]
    del fencepost.environment["HOME"]
    one_sentence(fencepost("list"), 2, "set FENCEPOST_STORE to a file")


def test_a_folder_that_cannot_be_made_is_named(fencepost: Command) -> None:
    (fencepost.folder / "state").write_text("a file is in the way")
    del fencepost.environment["FENCEPOST_STORE"]
    fencepost.environment["XDG_STATE_HOME"] = str(fencepost.folder / "state")
    done = fencepost.run("plain")
    assert done.code == 7
    assert f"the folder {fencepost.folder}/state/fencepost cannot be made" in done.err


# --- stores -----------------------------------------------------------------------------------------------


def of_another_application(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 1234").fetchall()
    db.execute("CREATE TABLE theirs (x)").fetchall()
    db.close()


def of_a_newer_fencepost(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version = 999").fetchall()
    db.close()


def with_a_broken_page(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


def full_of_text(path: Path) -> None:
    path.write_text("this is no database, it only looks like a file of one\n" * 200)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (full_of_text, "is not a Fencepost store"),
        (a_folder, "is a folder, not a store; name a file in it"),
        (of_a_newer_fencepost, "has schema 999, this Fencepost knows up to"),
        (with_a_broken_page, "is damaged"),
    ],
)
def test_a_store_that_cannot_be_used_gets_one_sentence(
    fencepost: Command, spoil: Callable[[Path], None], words: str
) -> None:
    fencepost.run("plain")
    for beside in fencepost.folder.glob("store.db-*"):
        beside.unlink()
    spoil(fencepost.store)
    before = fencepost.store.read_bytes() if fencepost.store.is_file() else b""
    for command in (("list",), ("show", "task"), ("run", f"{AGENTS}:plain", "x", "--quiet")):
        one_sentence(fencepost(*command), 7, str(fencepost.store), words)
    after = fencepost.store.read_bytes() if fencepost.store.is_file() else b""
    assert after == before


def test_the_database_of_another_application_is_left_alone(fencepost: Command) -> None:
    of_another_application(fencepost.store)
    before = fencepost.store.read_bytes()
    one_sentence(fencepost("list"), 7, "is another application's database (application_id 1234)")
    one_sentence(fencepost.run("plain", "--quiet"), 7, "is another application's database")
    assert fencepost.store.read_bytes() == before


def test_a_store_in_a_folder_that_does_not_exist_is_told(fencepost: Command) -> None:
    done = fencepost.run("plain", "--quiet", "--store", str(fencepost.folder / "nowhere" / "s.db"))
    one_sentence(done, 7, f"the folder {fencepost.folder}/nowhere does not exist; create it")


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(),
    reason="setpriv is not installed, and root may write anywhere; run: apt-get install -y util-linux",
)
def test_a_store_that_may_not_be_written_is_told(fencepost: Command) -> None:
    fencepost.run("plain")
    fencepost.store.chmod(0o444)
    fencepost.folder.chmod(0o555)
    for folder in [fencepost.folder, *fencepost.folder.parents][1:3]:
        folder.chmod(folder.stat().st_mode | 0o055)
    try:
        one_sentence(as_nobody(fencepost, "list"), 7, "cannot be written")
    finally:
        fencepost.folder.chmod(0o755)


def as_nobody(fencepost: Command, *arguments: str) -> Done:
    """Run the program without the right to write everywhere."""
    program = [sys.executable, "-m", "fencepost", *arguments]
    if os.geteuid() == 0:
        program = ["/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all", *program]
    done = subprocess.run(program, env=fencepost.environment, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_full_disk_ends_the_run_with_7_and_loses_nothing(fencepost: Command) -> None:
    fencepost.run("plain")
    room = fencepost.store.stat().st_size + 60_000
    script = fencepost.folder / "fills_the_disk.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(AGENTS.parents[2])!r})\n"
        "from fencepost import Agent, Limits, tool\n"
        "from fencepost.models.scripted import call, calls, say\n"
        "from tests.cli.agents_for_tests import ByStep\n"
        "@tool(effect='read', repeat='ok')\nasync def big() -> str:\n    return 'x' * 50_000\n"
        "def agent():\n"
        "    script = [calls(call('big', id=str(n))) for n in range(8)]\n"
        "    return Agent('fills', ByStep([*script, say('done')]), Limits(steps=9), tools=(big,))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", "run", f"{script}:agent", "fill it", "--quiet"],
        env=fencepost.environment, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )  # fmt: skip
    one_sentence(
        Done(done.returncode, done.stdout, done.stderr), 7, "there is no room left", "fencepost resume task-"
    )
    task = fencepost("list", "--json").document["tasks"][0]["id"]
    resumed = fencepost("resume", task)
    assert resumed.code == 0, resumed.err
    assert resumed.out.startswith("Answer\n  done\n")


def test_a_changed_agent_is_refused_until_somebody_accepts_it(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    fencepost("approvals", "approve", task, "1.0")
    other = f"{AGENTS}:asks_twice"
    one_sentence(
        fencepost("resume", task, "--agent", other), 2, "has changed since task", "--accept-definition"
    )
    accepted = fencepost("resume", task, "--agent", other, "--accept-definition")
    assert accepted.code == 0, accepted.err
    assert "a changed definition was accepted by local/" in fencepost("show", task).out


def test_a_changed_agent_ends_the_task_where_somebody_says_so(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    fencepost("approvals", "approve", task, "1.0")
    other = f"{AGENTS}:asks_twice"
    refused = fencepost("resume", task, "--agent", other, "--refuse-definition", "--json")
    assert (refused.code, refused.document["task"]["reason"]) == (1, "DEFINITION_CHANGED"), refused.err
    shown = fencepost("show", task).out
    assert "DEFINITION_CHANGED" in shown


def test_a_task_of_another_program_needs_to_be_told_its_agent(fencepost: Command) -> None:
    from fencepost.run.running import open_task
    from fencepost.stores.sqlite import SqliteStore
    from tests.cli.agents_for_tests import plain

    async def opened() -> str:
        store = SqliteStore(fencepost.store)
        row = await open_task(plain(), "from a program", store=store)
        await store.close()
        return row.id

    task = asyncio.run(opened())
    one_sentence(fencepost("resume", task), 2, "did not say where its agent is", "--agent file.py:attribute")
    assert fencepost("resume", task, "--agent", f"{AGENTS}:plain").code == 0


def test_output_that_cannot_be_written_ends_with_74_and_what_was_done_stays_done(fencepost: Command) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fencepost", "run", f"{AGENTS}:plain", "look", "--quiet"],
            env=fencepost.environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 74
    assert done.stderr == (
        "fencepost: the output cannot be written (No space left on device); what was done stays done\n"
    )
    assert fencepost("list", "--json").document["tasks"][0]["state"] == "SUCCEEDED"


def test_a_program_without_stdout_and_stderr_still_does_its_work(fencepost: Command) -> None:
    script = f'exec "{sys.executable}" -m fencepost run "{AGENTS}:plain" look >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", script], env=fencepost.environment, check=False)
    assert done.returncode == 0
    assert fencepost("list", "--json").document["tasks"][0]["state"] == "SUCCEEDED"


def test_a_prompt_may_come_from_stdin(fencepost: Command) -> None:
    done = fencepost.process("run", f"{AGENTS}:plain", "-", "--json", stdin="look at this\n")
    assert done.document["task"]["prompt"] == "look at this"
