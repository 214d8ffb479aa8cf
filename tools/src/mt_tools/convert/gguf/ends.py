"""Tokens at which llama.cpp ends a text: two that a GGUF file names, and those that it knows by their text (``llama-vocab.cpp``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mt_tools.convert.gguf.vocabulary import GgufVocabulary

WRITTEN = 2
"""Ends that a file names: ``eos_token_id`` and ``eot_token_id``."""
DEFAULT = {"gpt2": 11, "llama": 2}
"""Kind of a vocabulary → id that llama.cpp takes for the end where a file names none."""
_NAMES = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS]
<|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[
<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
KNOWN = frozenset(_NAMES.split())
"""Tokens that end texts by their name, those of gaps in code among them (``special_eog_ids``)."""


def say_ends(vocabulary: GgufVocabulary, ends: Sequence[int], say: Callable[[str], None]) -> None:
    """Say where llama.cpp ends texts otherwise than at ``ends``, the ids that the folder has for it."""
    tokens = vocabulary.tokens
    by_name = [number for number, token in enumerate(tokens) if token in KNOWN]
    more = [number for number in by_name if number not in ends]
    lost = [number for number in ends[WRITTEN:] if number not in by_name]
    found = []
    if more:
        found.append(f"also at {', '.join(repr(tokens[number]) for number in more)}, which it knows by name")
    if not ends and (default := DEFAULT[vocabulary.model]) < len(tokens):
        found.append(f"at {tokens[default]!r}, its default (id {default}), since the folder names no end")
    if lost:
        listed = ", ".join(repr(tokens[number]) for number in lost)
        found.append(f"not at {listed}, since a GGUF file has two ids for it (ids {', '.join(map(str, lost))})")
    if found:
        say(f"notice: llama.cpp ends texts {'; and '.join(found)}")
