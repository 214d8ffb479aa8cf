"""Offers of real shells for a command line, through the script that a command prints: ``offers(shell, script, line)``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BASH = r"""
source "$1"; line=$2; read -ra words <<< "$line"; [[ $line == *' ' ]] && words+=('')
registered=$(complete -p "${words[0]}"); function=${registered#*-F }; function=${function%% *}
COMP_WORDS=("${words[@]}"); COMP_CWORD=$((${#words[@]} - 1)); COMP_LINE=$line; COMP_POINT=${#line}
"$function" "${words[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = 'source $argv[1]; complete -C "$argv[2]" | string split --fields 1 \\t; true'
ZSH_INSIDE = r"""
PROMPT=; setopt no_beep; autoload -Uz compinit; compinit -u -D
bindkey '^M' undefined; bindkey '^J' undefined; bindkey '^I' complete-word
zstyle ':completion:*' insert-tab false
mark() { print -r -- "<offers>"; }
compprefuncs=(mark); comppostfuncs=(mark exit)
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
  local -a hits; builtin compadd -A hits "$@"
  (( $#hits )) && print -rl -- ${^hits}; (( $#hits ))
}
eval "$(<$SCRIPT)"; print ready
"""
ZSH = r"""
zmodload zsh/zpty; export SCRIPT=$1
zpty z zsh -f -i; zpty -w z "source $2"
while zpty -r z said; do [[ $said == ready* ]] && break; done
zpty -w z "$3"$'\t'
inside=0; while zpty -r z said; do
  said=${said%$'\r\n'}
  if [[ $said == *'<offers>' ]]; then (( ++inside == 2 )) && break; continue; fi
  (( inside == 1 )) && print -r -- "$said"
done
"""


def offers(shell: str, script: Path, line: str, cwd: Path | None = None) -> list[str]:
    """Return the words that a shell offers for the last word of a line; a line that ends in a space has an empty one."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH, "bash", str(script), line]
    elif shell == "fish":
        command = ["fish", "--no-config", "-c", FISH, str(script), line]
    else:
        inside = script.with_name("inside.zsh")
        inside.write_text(ZSH_INSIDE, encoding="utf-8")
        command = ["zsh", "-f", "-c", ZSH, "zsh", str(script), str(inside), line]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=cwd).stdout
    return sorted({word.strip() for word in said.splitlines() if word.strip()})
