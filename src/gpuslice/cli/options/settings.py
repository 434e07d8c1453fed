"""The option `--settings`, of every command that reads pods or prints what does."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.dialects import settings_file
from gpuslice.dialects.settings_file import SettingsError, SettingsFile


def _read(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> SettingsFile:
    if path is None:
        return settings_file.NO_FILE
    try:
        return settings_file.parse(path.read_text(), str(path))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None


settings_option = click.option(
    "--settings", metavar="FILE", type=click.Path(path_type=Path), callback=_read,
    help="Names, presets and slots per GPU, as in examples/settings.toml.  [default: as CastSlice's users know them]",
)  # fmt: skip
