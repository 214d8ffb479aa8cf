"""A conversation: history, commands, and room in the model's context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mt_core.errors import MtError, UsageError, show_value
from mt_core.generation import GenerationConfig
from mt_tools.generation.generate import Generator
from mt_tools.generation.media import MediaFiles, MediaText
from mt_tools.generation.prompts import chat_ids, template_of
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds, split_prompt
from mt_train.generation.text import Show

COMMANDS = {"/reset": "forget all turns", "/undo": "take the last turn back", "/exit": "end"}
Say = Callable[[str], None]


class Chat:
    """Turns of a user and the model. ``show`` gets the reply as it grows, ``say`` everything else."""

    def __init__(
        self,
        loaded: LoadedModel,
        wishes: GenerationConfig,
        *,
        show: Show,
        say: Say,
        system: str | None = None,
        chat_template: str | None = None,
        files: MediaFiles | None = None,
    ) -> None:
        self._loaded = loaded
        self._template = template_of(loaded, chat_template)
        self._reserve = wishes.max_new_tokens
        self._show = show
        self._say = say
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._replies, self._files = 0, files or MediaFiles(())
        self.turns: list[dict[str, Any]] = []
        """User and assistant in turn."""
        self._ids([{"role": "user", "content": "Hello"}])  # a template that is missing or broken is told at once
        self._writer = Generator(loaded, wishes, self._template)

    def run(self, lines: Iterable[str], *, ask: Callable[[], None] = lambda: None) -> None:
        """Answer line after line, until there are no more or one says ``/exit``. ``ask`` invites the next."""
        ask()
        for line in lines:
            text = line.rstrip("\r\n")
            if text.rstrip() == "/exit":
                return
            if text.startswith("/"):
                self.command(text.strip())
            elif text.strip():
                self.answer(text)
            ask()

    def command(self, word: str) -> None:
        """One of ``COMMANDS``; a notice for anything else."""
        if word == "/reset":
            self.turns.clear()
            self._say("notice: all turns are forgotten")
        elif word == "/undo":
            had = bool(self.turns)
            del self.turns[-2:]
            self._say("notice: the last turn is taken back" if had else "notice: there is no turn to take back")
        else:
            known = ", ".join(f"{name} ({what})" for name, what in COMMANDS.items())
            self._say(f"notice: no command {word}; there are {known}. To say it, put a space in front")

    def answer(self, text: str) -> None:
        """One turn; the reply is shown and kept. What cannot be answered is no part of the history."""
        turn: dict[str, Any] = {"role": "user", "content": text}
        try:
            marked = self._files.mark(text, whole=False)
            turn |= {"content": marked.text, "media": marked.parts} if marked.parts else {}
            self._tell_waiting(marked)
            ids = self._fit_turn(turn)
            shown = _PieceRecorder(self._show)
            try:
                reply = self._writer.stream(ids, self._replies, shown)
            except KeyboardInterrupt:
                self._say("\nnotice: interrupted; what was said so far is kept (Ctrl-C again at the prompt ends)")
                self.turns += [turn, {"role": "assistant", "content": shown.text}]
                return
        except MtError as error:
            self._say(f"error: {error}")
            return
        self._replies += 1
        self._show("\n")
        self.turns += [turn, {"role": "assistant", "content": reply.text}]
        if reply.finish == "context":
            self._say(f"notice: the reply ends where the model's {self._loaded.max_seq_len} tokens are full")

    def _tell_waiting(self, marked: MediaText) -> None:
        """Say of each kind of files that the first turn sees none of them: they wait for a place in a later one."""
        if self.turns or marked.parts:
            return
        for kind, content in self._files.waiting.items():
            self._say(
                f"notice: {show_value(content, 80)} is no part of this turn; write <{kind}> where it belongs, in a later one"
            )

    def _fit_turn(self, turn: dict[str, Any]) -> PromptIds:
        """Ids of the conversation with this turn; the oldest turns go until a whole reply fits beside the rest."""
        limit, dropped = self._loaded.max_seq_len, 0
        ids = self._ids([*self.turns, turn])
        while self.turns and len(split_prompt(ids)[0]) + self._reserve > limit:
            del self.turns[:2]
            dropped += 1
            ids = self._ids([*self.turns, turn])
        if dropped:
            what = "turn was" if dropped == 1 else f"{dropped} turns were"
            self._say(f"notice: the oldest {what} forgotten, to fit the model's {limit} tokens with the reply")
        if (length := len(split_prompt(ids)[0])) >= limit:
            raise UsageError(f"this turn has {length} tokens, and the model takes {limit} with the reply; shorten it")
        return ids

    def _ids(self, turns: list[dict[str, Any]]) -> PromptIds:
        return chat_ids(self._template, [*self._system, *turns])


class _PieceRecorder:
    """Passes pieces on and keeps them, for a reply that is interrupted."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self.text = ""

    def __call__(self, piece: str) -> Any:
        self.text += piece
        self._show(piece)
