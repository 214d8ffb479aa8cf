"""Helpers for commands of plugins: how ours read a command line, write files, hold a folder and end. Importing this imports no torch."""

from mt_core.cli.guard import parse_and_run, run_command
from mt_core.config.faults import faults_of
from mt_core.config.terminal import drawing_stream, escape_controls
from mt_core.kinds import CORE_KINDS, Kinds
from mt_core.tracking.logs import notice
from mt_train.assemble.stopping import SIGNALS, signals_taken
from mt_train.checkpoint.files import replace_text
from mt_train.checkpoint.folder import next_run_folder
from mt_train.checkpoint.lock import hold_lock
from mt_train.config.commandline import CommandLine, merge, parse, parse_flags
from mt_train.config.files import read_config, write_yaml
from mt_train.config.names import expand
from mt_train.plugins.completion import write_completion
from mt_train.plugins.recipes import installed_kinds, read_layered
from mt_train.tracking.console import duration
from mt_train.version import describe_version

__all__ = [
    "CORE_KINDS",
    "SIGNALS",
    "CommandLine",
    "Kinds",
    "describe_version",
    "drawing_stream",
    "duration",
    "escape_controls",
    "expand",
    "faults_of",
    "hold_lock",
    "installed_kinds",
    "merge",
    "next_run_folder",
    "notice",
    "parse",
    "parse_and_run",
    "parse_flags",
    "read_config",
    "read_layered",
    "replace_text",
    "run_command",
    "signals_taken",
    "write_completion",
    "write_yaml",
]
