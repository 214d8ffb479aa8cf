"""A conversation: history, commands, a context that overflows, and what cannot be answered."""

from __future__ import annotations

import pytest

from mt_core.errors import UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_tools.generation.chat import Chat
from mt_tools.generation.generate import generate
from mt_train.generation.loaded_model import LoadedModel

TEMPLATE = (
    "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


class Talk:
    """A chat whose replies and notices are kept."""

    def __init__(self, loaded: LoadedModel, *, system: str | None = None, most: int = 8, **rules: object) -> None:
        self.shown: list[str] = []
        self.said: list[str] = []
        wishes = GenerationConfig(rules=SamplingRules(**(rules or {"greedy": True})), max_new_tokens=most)
        self.chat = Chat(
            loaded, wishes, show=self.shown.append, say=self.said.append, system=system, chat_template=TEMPLATE
        )

    def __call__(self, *lines: str) -> str:
        self.shown.clear()
        self.chat.run(f"{line}\n" for line in lines)
        return "".join(self.shown)


def reply_to(loaded: LoadedModel, text: str, most: int = 8) -> str:
    return generate(loaded, text, GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=most))[0].text


def test_a_reply_sees_the_turns_before_it(loaded: LoadedModel) -> None:
    talk = Talk(loaded, system="S")
    first = reply_to(loaded, "[s]S\n[u]one\n[a]")
    second = reply_to(loaded, f"[s]S\n[u]one\n[a]{first}\n[u]two\n[a]")
    assert talk("one", "two") == f"{first}\n{second}\n"
    assert [turn["content"] for turn in talk.chat.turns] == ["one", first, "two", second]
    assert talk.said == []


def test_undo_and_reset_take_turns_back(loaded: LoadedModel) -> None:
    talk = Talk(loaded)
    first = reply_to(loaded, "[u]one\n[a]")
    talk("one", "two", "/undo")
    assert [turn["content"] for turn in talk.chat.turns] == ["one", first]
    talk("/reset")
    assert talk.chat.turns == []
    talk("/undo")
    assert talk.said[-1] == "notice: there is no turn to take back"
    assert talk("one") == f"{first}\n"


def test_exit_ends_and_empty_lines_are_no_turns(loaded: LoadedModel) -> None:
    talk = Talk(loaded)
    talk("", "   ", "/exit", "one")
    assert talk.chat.turns == []


def test_an_unknown_command_is_told_and_is_no_turn(loaded: LoadedModel) -> None:
    talk = Talk(loaded)
    talk("/rest")
    assert talk.said[0].startswith("notice: no command /rest; there are /reset (forget all turns)")
    assert talk.chat.turns == []
    talk(" /rest", " /exit")
    assert [turn["content"] for turn in talk.chat.turns[::2]] == [" /rest", " /exit"]


def test_the_oldest_turns_go_when_the_context_is_full_and_the_system_turn_stays(loaded: LoadedModel) -> None:
    talk = Talk(loaded, system="keep", most=20)
    talk("a" * 30, "b" * 30, "c" * 30)
    assert [turn["content"] for turn in talk.chat.turns[::2]] == ["a" * 30, "b" * 30, "c" * 30][
        -len(talk.chat.turns) // 2 :
    ]
    assert 2 <= len(talk.chat.turns) < 6
    assert "forgotten, to fit the model's 128 tokens with the reply" in talk.said[0]
    kept = "".join(f"[{turn['role'][0]}]{turn['content']}\n" for turn in talk.chat.turns[:-1])
    seen = f"[s]keep\n{kept}[a]"
    assert 1 + len(seen.encode()) + 20 <= 128, "a whole reply has room"
    assert talk.chat.turns[-1]["content"] == reply_to(loaded, seen, most=20)


def test_a_turn_that_never_fits_is_told_and_the_conversation_goes_on(loaded: LoadedModel) -> None:
    talk = Talk(loaded)
    first = reply_to(loaded, "[u]one\n[a]")
    assert talk("x" * 200, "one") == f"{first}\n"
    assert "this turn has 208 tokens, and the model takes 128" in talk.said[-1]


def test_a_reply_that_fills_the_context_says_so(loaded: LoadedModel) -> None:
    talk = Talk(loaded, most=100)
    talk("x" * 100)
    (reply,) = [turn for turn in talk.chat.turns if turn["role"] == "assistant"]
    assert len(reply["content"]) < 100
    assert talk.said[-1] == "notice: the reply ends where the model's 128 tokens are full"


def test_equal_words_may_get_another_reply_the_second_time(loaded: LoadedModel) -> None:
    talk = Talk(loaded, temperature=3.0)
    first, _, again = talk("one"), talk("/undo"), talk("one")
    assert first != again
    assert first == Talk(loaded, temperature=3.0)("one")


def test_an_interrupted_reply_is_kept_as_far_as_it_was_shown(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(loaded)
    whole = reply_to(loaded, "[u]one\n[a]")
    shown = talk.shown.append

    def interrupt(piece: str) -> None:
        shown(piece)
        if len(talk.shown) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(talk.chat, "_show", interrupt)
    talk("one")
    assert talk.chat.turns[-1]["content"] == whole[:3]
    assert "interrupted" in talk.said[-1]


def test_a_tokenizer_without_template_is_told_before_the_first_turn(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match="--chat-template to ask a model"):
        Chat(loaded, GenerationConfig(), show=print, say=print)
