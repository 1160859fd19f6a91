"""`completion`: what a shell needs to complete our commands, options and choices.

Rule: the shell asks this very program what fits, so a completion is never older than the program. It asks through
the variable _FENCEPOST_COMPLETE, which `click` answers before any command runs.
"""

from __future__ import annotations

import click

from fencepost.cli.command import Desk, command

PROGRAM = "fencepost"
ASKED_THROUGH = f"_{PROGRAM.upper()}_COMPLETE"


@click.command(short_help="Print what makes a shell complete our commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@command
async def completion(desk: Desk, shell: str) -> int:
    """Print the script that makes SHELL complete commands and options.

    For this session: eval "$(fencepost completion bash)", the same with zsh, or fencepost completion fish | source.
    For every session put that line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.
    """
    script = script_for(shell)
    if desk.json:
        desk.show({"shell": shell, "script": script})
    else:
        desk.out.raw(script)
    return 0


def script_for(shell: str) -> str:
    """The script of that shell: it defines functions and runs nothing."""
    from click.shell_completion import ShellComplete, get_completion_class

    from fencepost.cli.program import program

    made = get_completion_class(shell)
    assert made is not None, f"click completes in {shell}"
    # The plain method: the one for bash first starts a bash to ask for its version.
    return ShellComplete.source(made(program, {}, PROGRAM, ASKED_THROUGH)).strip("\n")
