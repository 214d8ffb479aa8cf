"""Templates that write conversations down: the tokenizer's own template, a named one, or a file (``data.template``)."""

from __future__ import annotations

from datetime import date
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, PLAIN, TEMPLATES
from mt_train.data.templates.additions import Additions
from mt_train.data.templates.chat import ChatTemplate, own_source
from mt_train.data.templates.plain import PlainTemplate
from mt_train.data.templates.tools import MESSAGE_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mt_core.protocols import Template, Tokenizer
    from mt_core.rows import Encoded, Message

_DEFAULTS = DataConfig()


def build_template(
    tokenizer: Tokenizer, config: DataConfig = _DEFAULTS, *, media: bool = False, day: date | None = None
) -> Template:
    """The run's template, as ``data.template`` and its neighbours say. ``media``: turns may have marks, which become ``MEDIA_ID``.

    Templates that write today's date write ``day`` where there is one (``ROW_DAY``). Raises ``DataError`` where the tokenizer has none
    of its own.
    """
    additions = Additions(config.system, config.prefix, config.postfix)
    if config.template is None:
        return DefaultTemplate(tokenizer, additions, config.train_on, media=media, day=day)
    if config.template == PLAIN:
        return PlainTemplate(tokenizer, additions, config.train_on, media=media)
    if config.template == OWN:
        return ChatTemplate(tokenizer, own_source(tokenizer), additions, config.train_on, media=media, day=day)
    if config.template in TEMPLATES:
        source = _template_named(config.template)
        tools = any(key in source for key in MESSAGE_KEYS)
        return ChatTemplate(
            tokenizer, source, additions, config.train_on, name=config.template, begins=True, tools=tools, media=media
        )
    return ChatTemplate(
        tokenizer, config.template, additions, config.train_on, name="of data.template", media=media, day=day
    )


def jinja_source(tokenizer: Tokenizer, config: DataConfig) -> str | None:
    """The Jinja text of the run's template, for others who read it; ``None`` where turns are plain or have no template."""
    if config.template in (None, OWN):
        return own_source(tokenizer) if tokenizer.chat_template else None
    if config.template == PLAIN:
        return None
    return _template_named(config.template) if config.template in TEMPLATES else config.template


def _template_named(name: str) -> str:
    return (files(__name__) / "named" / f"{name}.jinja").read_text(encoding="utf-8")


class DefaultTemplate:
    """The tokenizer's own template, and plain text for rows that are a prompt and a response and nothing else."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        additions: Additions,
        train_on: str,
        *,
        media: bool = False,
        day: date | None = None,
    ) -> None:
        self._tokenizer, self._given, self._train_on = tokenizer, additions, train_on
        self._media, self._day = media, day
        self._plain = PlainTemplate(tokenizer, additions, train_on, media=media)
        self.additions = additions.keys

    @cached_property
    def _own_template(self) -> ChatTemplate:
        source = own_source(self._tokenizer)
        return ChatTemplate(self._tokenizer, source, self._given, self._train_on, media=self._media, day=self._day)

    def of_today(self) -> DefaultTemplate:
        """See ``DatedTemplate``."""
        return DefaultTemplate(self._tokenizer, self._given, self._train_on, media=self._media)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """See ``Template``: those of the tokenizer's own template, where it has one."""
        own = self._own_template.stop_ids if self._tokenizer.chat_template else ()
        return tuple(dict.fromkeys([*self._plain.stop_ids, *own]))

    @property
    def stop_text(self) -> str | None:
        """See ``Template``."""
        return self._own_template.stop_text if self._tokenizer.chat_template else None

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``."""
        return self.encode_many([messages])[0]

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """See ``ManyConversations``."""
        plain = [all(message.get("raw") for message in self._given.put(messages)) for messages in conversations]
        pairs = list(zip(conversations, plain, strict=True))
        as_plain = iter(self._plain.encode_many([messages for messages, is_plain in pairs if is_plain]))
        as_own = iter(
            self._own_template.encode_many([messages for messages, is_plain in pairs if not is_plain])
            if not all(plain)
            else []
        )
        return [next(as_plain if is_plain else as_own) for is_plain in plain]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """See ``Template``."""
        is_plain = all(message.get("raw") for message in self._given.put(messages))
        return self._plain.prompt(messages) if is_plain else self._own_template.prompt(messages)
