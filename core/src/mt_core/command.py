"""For commands of plugins: how ours read a command line, write files, hold a folder and end. Importing this imports no torch."""

from mt_core.assemble.stopping import SIGNALS, signals_taken
from mt_core.checkpoint.files import replace_text
from mt_core.checkpoint.folder import next_run_folder
from mt_core.checkpoint.lock import held
from mt_core.cli.guard import guarded
from mt_core.config.commandline import CommandLine, merge, parse
from mt_core.config.faults import faults_of
from mt_core.config.files import read_config, write_yaml
from mt_core.config.names import expand
from mt_core.config.run import SLOTS
from mt_core.config.terminal import drawn_on, visible
from mt_core.tracking.console import duration
from mt_core.tracking.logs import notice

__all__ = [
    "SIGNALS",
    "SLOTS",
    "CommandLine",
    "drawn_on",
    "duration",
    "expand",
    "faults_of",
    "guarded",
    "held",
    "merge",
    "next_run_folder",
    "notice",
    "parse",
    "read_config",
    "replace_text",
    "signals_taken",
    "visible",
    "write_yaml",
]
