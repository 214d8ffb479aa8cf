"""A whole model that sees as one Hugging Face folder: encoder and projector beside the text model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mt_core.components import WeightsFormat
from mt_core.errors import UsageError
from mt_core.media import ProjectorComponent
from mt_core.weights import CONFIG, WHOLE_TYPES, Loaders, WholeType, image_token_id, read_json, whole_name
from mt_tools.convert.source import Source
from mt_tools.convert.writing import write_json
from mt_train.assemble.media import MEDIA
from mt_train.assemble.run_encoder import RunEncoder

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
SPELLED = "<image>"
"""Token that is taken for an image where the encoder's options name none."""
T = TypeVar("T")


@dataclass(frozen=True)
class WholeModel:
    """The encoder of a source, which can be written with its projector, and the formats that do so."""

    source: Source
    encoder: RunEncoder
    encoder_format: WeightsFormat
    projector_format: WeightsFormat

    @classmethod
    def of(cls, source: Source) -> WholeModel | None:
        """Return what a source adds to its text model; ``None`` for one that does not see.

        Raises ``UsageError`` by name for an encoder, a projector or an objective that no folder of transformers has.
        """
        encoders = source.parts.encoders
        if not encoders:
            return None
        if len(encoders) > 1:
            listed = ", ".join(each.name for each in encoders)
            raise UsageError(
                f"the model has {len(encoders)} encoders ({listed}), and a Hugging Face folder one; {_KEPT}"
            )
        (encoder,) = encoders
        projector = encoder.projector.offer.component
        assert isinstance(projector, ProjectorComponent), "the host checks what mt_projectors returns"
        encoder_format, projector_format = _writer(encoder.component.formats), _writer(projector.formats)
        if encoder_format is None or projector_format is None:
            formats = {
                f"the encoder {encoder.name}": encoder_format,
                f"the projector {projector.name}": projector_format,
            }
            lacking = " and ".join(each for each, form in formats.items() if form is None)
            raise UsageError(f"{lacking} cannot be written into a Hugging Face folder; {_KEPT}")
        if source.parts.objective_component.head == "own":
            raise UsageError(
                f"the run's objective has a head of its own, and no class of transformers has it with images; {_KEPT}"
            )
        found = cls(source, encoder, encoder_format, projector_format)
        found.architecture  # noqa: B018 - refuses parts that do not go together
        return found

    @cached_property
    def architecture(self) -> str:
        """The class of transformers. Raises ``UsageError`` where encoder and projector are parts of two."""
        (of_encoder,), (of_projector,) = (part["architectures"] for part in self._exported)
        if of_encoder != of_projector:
            projector = self.encoder.projector.offer.component.name
            raise UsageError(
                f"the encoder {self.encoder.name} is written into a {of_encoder}, and the projector {projector} into a {of_projector};"
                f" {_KEPT}"
            )
        return str(of_encoder)

    @property
    def kind(self) -> WholeType:
        """Facts about the model class."""
        return WHOLE_TYPES[self.architecture]

    def name(self, name: str) -> str:
        """Return the name that a text model's tensor has in the files."""
        return whole_name(name, self.architecture)

    @property
    def _exported(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Keys of ``config.json`` by encoder and projector."""
        assert self.encoder_format.exported is not None, "of() chose formats that write"
        assert self.projector_format.exported is not None, "of() chose formats that write"
        return (
            self.encoder_format.exported(self.encoder.options),
            self.projector_format.exported(self.encoder.projector.options),
        )

    @cached_property
    def image_token(self) -> tuple[int, str]:
        """Id and text of the token that stands for an image. Raises ``UsageError`` where there is none."""
        return find_image_token(self.source, self.encoder)

    def split(self, tensors: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Return what is of the text model, and what is of encoder and projector, by their names without what stands in front."""
        begin = f"{MEDIA}{self.encoder.name}."
        return (
            {name: each for name, each in tensors.items() if not name.startswith(begin)},
            {name.removeprefix(begin): each for name, each in tensors.items() if name.startswith(begin)},
        )

    def loaders(self, text: Loaders, own: Loaders) -> Loaders:
        """Return the tensors of all files, of which ``text`` has the text model's under the names of its own folder."""
        options = {"encoder": self.encoder.options, "projector": self.encoder.projector.options}
        found = {self.name(name): load for name, load in text.items()}
        for part, form in (("encoder", self.encoder_format), ("projector", self.projector_format)):
            assert form.written is not None, "of() chose formats that write"
            here = {name.removeprefix(f"{part}."): load for name, load in own.items() if name.startswith(f"{part}.")}
            found |= form.written(options[part], here)
        return found

    def config(self, text: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``config.json``, in which ``text`` is that of the text model. Raises ``UsageError`` for one that no such model has."""
        kind, (of_encoder, of_projector) = self.kind, self._exported
        types = {ours: theirs for theirs, ours in kind.texts.items()}
        if text.get("model_type") not in types:
            raise UsageError(
                f"a text model of type {text.get('model_type')} cannot be written into a {self.architecture} (those that can:"
                f" {', '.join(types)}); {_KEPT}"
            )
        self._refuse_other_positions(text)
        content = {
            **of_encoder,
            **of_projector,
            kind.image_token: self.image_token[0],
            **self._tokens_around(),
            "text_config": {**text, "model_type": types[text["model_type"]]},
            "tie_word_embeddings": bool(text.get("tie_word_embeddings")),
            **ids,
        }
        if kind.width is not None:
            content["vision_config"] = {**content["vision_config"], kind.width: text["hidden_size"]}
        return content

    def _refuse_other_positions(self, text: Mapping[str, Any]) -> None:
        """Raise ``UsageError`` for a text model whose places of media are not those of the class."""
        rope = text.get("rope_parameters") or {}
        found = [
            bool(each.get(key)) for each in (rope, self.kind.rope) for key in ("mrope_section", "mrope_interleaved")
        ]
        if found[:2] != found[2:]:
            rows = "rows and columns of images (M-RoPE)"
            has, wants = (
                f"{'' if each[0] else 'no '}{rows}{', interleaved' if each[1] else ''}"
                for each in (found[:2], found[2:])
            )
            raise UsageError(f"the text model has {has}, and a {self.architecture} {wants}; {_KEPT}")

    def _tokens_around(self) -> dict[str, int]:
        """Ids of texts in front of an image and behind it, where these are one token each."""
        texts = {key: getattr(self.encoder.options, option) for key, option in self.kind.tokens.items()}
        ids = {key: self.source.parts.tokenizer.encode(text) for key, text in texts.items() if text}
        return {key: found[0] for key, found in ids.items() if len(found) == 1}

    def spelled(self) -> tuple[str, str]:
        """Return the type of a part of a conversation, and what a template writes for it."""
        (kind,) = self.encoder.component.reads
        options = self.encoder.options
        return kind, f"{options.begin}{self.image_token[1]}{options.end}"

    def write_files(self, stage: Path) -> None:
        """Write what reads images in transformers; what is there already stays."""
        if (files := self.encoder.component.files) is None:
            return
        for name, content in files(self.encoder.options, self.image_token[1]).items():
            if not (stage / name).exists():
                write_json(stage / name, content)


_KEPT = "keep the run, whose checkpoints and commands have all of it"


def find_image_token(source: Source, encoder: RunEncoder) -> tuple[int, str]:
    """Return id and text of the token that stands for an image: the encoder's, that of the folder, or the tokenizer's ``<image>``.

    Raises ``UsageError`` where there is none.
    """
    if encoder.path is not None and encoder.path == source.parts.weights_path and encoder.options.token is None:
        folder = encoder.path.parent if encoder.path.is_file() else encoder.path
        said = read_json(folder / CONFIG)
        if (number := image_token_id(said)) is not None:
            return number, SPELLED
    tokenizer, text = source.parts.tokenizer, encoder.options.token or SPELLED
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise UsageError(
            f"the tokenizer has no token that stands for an image ({text} is {len(ids)} tokens), and a folder needs one; add it before"
            f" training (--tokenizer.add-special-tokens {SPELLED}), or keep the run"
        )
    return ids[0], text


def _writer(formats: tuple[WeightsFormat, ...]) -> WeightsFormat | None:
    return next((each for each in formats if each.exported is not None and each.written is not None), None)


def refuse_encoders(source: Source) -> None:
    """Raise ``UsageError`` for a run with encoders of media, which an adapter's folder has no place for, with what can be written."""
    names = [each.name for each in source.parts.encoders]
    if not names:
        return
    tensors = ", ".join(f"{MEDIA}{name}.*" for name in names)
    problem = (
        f"{source.path} has encoders of media ({', '.join(names)}), and a folder of {source.parts.config.model.name} has no place for"
        f" {tensors}"
    )
    try:
        WholeModel.of(source)
    except UsageError as error:
        raise UsageError(f"{problem}; nor can the whole model be written: {error}") from error
    raise UsageError(
        f"{problem}; write the whole model (mt-convert, or mt-export --merge), or train on from the run itself (mt-train --resume)"
    )
