"""Conformance of a tokenizer: texts come back, and every id is one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mt_conformance.base import BasePluginConformance
from mt_core.components import TokenizerComponent
from mt_core.data.text_ids import begin_ids
from mt_core.plugins.host import PluginHost
from mt_core.protocols import ManyTexts, Tokenizer

NASTY = {
    "nothing": "",
    "one space": " ",
    "spaces at both ends": "  two  spaces ",
    "line breaks": "a\n\nb\r\nc\n",
    "tabs": "\tif x:\n\t\treturn",
    "accents in one character": "na\u00efve fa\u00e7ade",
    "accents in two characters": "nai\u0308ve fac\u0327ade",
    "Greek, Hebrew, Arabic": "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "Chinese, Japanese, Korean": "\u4f60\u597d \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4",
    "emoji joined of several": "\U0001f469\u200d\U0001f4bb\U0001f1ea\U0001f1fa\U0001f44d\U0001f3fd",
    "beyond the basic plane": "\U0001d54f\U0002070e",
    "invisible characters": "a\u200bb\u00adc\ufeffd",
    "a non-breaking space": "10\u00a0000",
    "control characters": "a\x00b\x07c\x1bd",
    "a replacement character": "\ufffd",
    "digits and signs": "3.14159, -2e-7, 1_000, 50 %",
    "code": "def f(x: int) -> dict[str, int]: return {'a': x ** 2}  # ok",
    "what looks like a special token": "<s> </s> <|endoftext|> [INST] <unk> <pad>",
    "one word, very long": "a" * 2000,
    "many accents on one letter": "Z\u0351\u036b\u0343\u036a\u0302",
}
"""Texts that are hard for a tokenizer, by the reason."""


class BaseTokenizerConformance(BasePluginConformance):
    """Checks of a tokenizer. If it reads files, ``options_in`` writes them.

    ``lossless = False`` is for a tokenizer that normalises: what comes back may then differ once, and never again.
    """

    kind = "tokenizer"
    lossless: bool = True

    def tokenizer(self, host: PluginHost, folder: Path) -> Tokenizer:
        """Build the tokenizer as a run does."""
        built: Tokenizer = self.part(host, folder).build()
        return built

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return the ids of texts, their offsets and texts again, and the special ids."""
        tokenizer = self.tokenizer(host, folder)
        encoded = [tokenizer.encode_with_offsets(text) for text in NASTY.values()]
        texts = [tokenizer.decode(ids) for ids, _ in encoded]
        special = {name: getattr(tokenizer, name) for name in ("size", "bos_id", "eos_id", "pad_id", "chat_template")}
        return encoded, texts, special, list(begin_ids(tokenizer)), getattr(tokenizer, "added", None)

    def test_texts_come_back_as_they_were(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Decoding an encoded text gives the text back; special tokens that a text spells out are read as text."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        encode = getattr(tokenizer, "encode_text", tokenizer.encode)
        for what, text in NASTY.items():
            back = tokenizer.decode(encode(text))
            wanted = text if self.lossless else tokenizer.decode(encode(back))
            assert back == wanted, (
                f"{what}: {text[:60]!r} came back as {back[:60]!r}"
                + (f", and that as {wanted[:60]!r}" if not self.lossless else "")
                + ". What is trained on is then not what the rows say; a tokenizer that normalises on purpose sets"
                " lossless = False in its test, and must come to rest after one round"
            )

    def test_every_id_is_below_its_size(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Ids are below ``size``, the rows of the embedding; a larger id causes an obscure error on a GPU."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        for what, text in NASTY.items():
            ids = tokenizer.encode(text)
            wrong = [each for each in ids if not isinstance(each, int) or not 0 <= each < tokenizer.size]
            assert not wrong, f"{what}: encode gave {wrong[:3]}; ids are int, from 0 to size - 1 = {tokenizer.size - 1}"
        for name in ("bos_id", "eos_id", "pad_id"):
            special = getattr(tokenizer, name)
            assert special is None or 0 <= special < tokenizer.size, (
                f"{name} is {special!r}; it must be an id from 0 to size - 1 = {tokenizer.size - 1}, or None where there is none"
            )
        component = self.component(mt_host)
        if isinstance(component, TokenizerComponent):
            said = component.size(self.config(mt_host, tmp_path))
            assert said in (None, tokenizer.size), (
                f"size(config) says {said} ids, and what is built has {tokenizer.size}"
            )

    def test_encode_adds_no_special_token(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Templates add begin and end tokens; if ``encode`` added them too, a row would have two."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        special = {getattr(tokenizer, name) for name in ("bos_id", "eos_id", "pad_id")} - {None}
        for text in ("", "a text", NASTY["code"]):
            added = special & set(tokenizer.encode(text))
            assert not added, (
                f"encode({text!r}) has the special ids {sorted(added)}; it must give the ids of the text alone"
            )

    def test_what_stands_in_front_of_a_text_are_ids_that_give_no_text(
        self, mt_host: PluginHost, tmp_path: Path
    ) -> None:
        """``begin_ids``, or the begin token without them, decode to no text."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        begin = begin_ids(tokenizer)
        wrong = [each for each in begin if not isinstance(each, int) or not 0 <= each < tokenizer.size]
        assert not wrong, f"begin_ids has {wrong[:3]}; ids are int, from 0 to size - 1 = {tokenizer.size - 1}"
        text = tokenizer.decode([*begin, *tokenizer.encode("a b")])
        assert text == tokenizer.decode(tokenizer.encode("a b")), (
            f"decode shows begin_ids {list(begin)} as text: {text!r}; special tokens give none"
        )

    def test_special_tokens_give_no_text(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Special tokens decode to an empty text, since decoded text is shown to users."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        for name in ("bos_id", "eos_id", "pad_id"):
            special = getattr(tokenizer, name)
            if special is not None:
                text = tokenizer.decode([*tokenizer.encode("a b"), special])
                assert text == tokenizer.decode(tokenizer.encode("a b")), (
                    f"decode shows {name} ({special}) as text: {text!r}; special tokens give none"
                )

    def test_any_part_of_a_text_can_be_decoded(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A part of a character decodes to U+FFFD, since text is shown while it is generated."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        ids = tokenizer.encode(NASTY["emoji joined of several"])
        for end in range(len(ids) + 1):
            try:
                text: Any = tokenizer.decode(ids[:end])
            except Exception as error:
                raise AssertionError(
                    f"decode raised {type(error).__name__} for the first {end} ids of an emoji: {error}. An incomplete"
                    " character gives U+FFFD (errors='replace')"
                ) from error
            assert isinstance(text, str), f"decode returned {text!r}; it must return text"

    def test_offsets_are_places_in_the_text(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Offsets are positions in the text; they determine which tokens belong to an answer."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        for what, text in NASTY.items():
            ids, offsets = tokenizer.encode_with_offsets(text)
            assert ids == tokenizer.encode(text), f"{what}: encode_with_offsets gave other ids than encode"
            assert len(offsets) == len(ids), f"{what}: {len(offsets)} offsets for {len(ids)} ids; each id needs one"
            wrong = [pair for pair in offsets if not 0 <= pair[0] <= pair[1] <= len(text)]
            assert not wrong, f"{what}: offsets {wrong[:3]} are not (start, end) in a text of {len(text)} characters"
            starts = [start for start, _ in offsets]
            assert starts == sorted(starts), f"{what}: the offsets go back ({starts[:20]}); they must follow the text"
            covered = {place for pair in offsets for place in range(*pair)}
            lost = [place for place, letter in enumerate(text) if place not in covered and not letter.isspace()]
            assert not lost or not self.lossless, (
                f"{what}: character {lost[0]} ({text[lost[0]]!r}) is in the ids, and in no offset; each ends behind the last"
                " character of its token"
            )

    def test_many_texts_at_once_are_encoded_as_each_alone(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``encode_many``, if there is one, equals ``encode`` for each text."""
        tokenizer = self.tokenizer(mt_host, tmp_path)
        if isinstance(tokenizer, ManyTexts):
            alone = getattr(tokenizer, "encode_text", tokenizer.encode)
            texts = list(NASTY.values())
            together = tokenizer.encode_many(texts)
            wrong = [what for what, text, ids in zip(NASTY, texts, together, strict=True) if list(ids) != alone(text)]
            assert not wrong, f"encode_many gives other ids than {alone.__name__} for: {', '.join(wrong)}"
