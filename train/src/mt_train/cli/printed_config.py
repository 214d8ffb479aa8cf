"""``mt-train --print-config``: the resolved config with the source of each value, as YAML that ``--config`` reads back."""

from __future__ import annotations

import yaml

from mt_train.config.files import write_yaml
from mt_train.plugins.resolve import Resolved

_COLUMN = 47
"""Characters before the mark of a remark; a space stands in front of it, without which it is part of the value to YAML."""


def annotate_config(resolved: Resolved) -> str:
    """Return the resolved config as YAML, each value with where it came from: above a value of several lines, behind any other."""
    text = write_yaml(resolved.config.as_raw())
    firsts, others = _lines_of_long_values(text)
    lines, section = [], ""
    for number, line in enumerate(text.splitlines()):
        if number in others:
            lines.append(line)
            continue
        if not line.startswith((" ", "-")):
            section = line.partition(":")[0]
        key = line.strip().partition(":")[0]
        remark = f"# {resolved.origins.get(f'{section}.{key}', 'default')}"
        if line.startswith("   ") or line.endswith(":"):
            lines.append(line)
        elif number in firsts:
            lines += [f"{'':<{_COLUMN}} {remark}", line]
        else:
            lines.append(f"{line:<{_COLUMN}} {remark}")
    return "\n".join(lines) + "\n"


def _lines_of_long_values(text: str) -> tuple[set[int], set[int]]:
    """Return the first lines of the values that go over several, from 0, and the other lines of these."""
    firsts, others = set[int](), set[int]()
    waiting = [yaml.compose(text, Loader=yaml.SafeLoader)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            first, last = node.start_mark.line, node.end_mark.line
            firsts |= {first} if last > first else set()
            others |= set(range(first + 1, last + 1))
        elif isinstance(node, yaml.MappingNode):
            waiting += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return firsts, others
