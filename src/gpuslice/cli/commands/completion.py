"""`gpuslice completion`: what makes a shell complete the commands and their options."""

from __future__ import annotations

import click
from click import shell_completion


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script by which a shell completes `gpuslice`.

    \b
    Example:
      eval "$(gpuslice completion bash)"                                       # for this shell
      gpuslice completion bash >/etc/bash_completion.d/gpuslice                # for every shell
      gpuslice completion zsh >"${fpath[1]}/_gpuslice"
      gpuslice completion fish >~/.config/fish/completions/gpuslice.fish
    """
    root = click.get_current_context().find_root().command
    script = shell_completion.get_completion_class(shell)
    assert script is not None
    click.echo(script(root, {}, "gpuslice", "_GPUSLICE_COMPLETE").source())
