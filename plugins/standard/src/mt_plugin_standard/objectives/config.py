"""Options of the objectives that predict tokens. Torch is imported when one is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core import MtConfig, Tokenizer, UsageError, continuation_encoder

if TYPE_CHECKING:
    from mt_core.nn import TokenScores


class TokenLossConfig(MtConfig):
    """Terms of a token's loss in training (evaluations have the plain cross-entropy), and which figures stand beside it."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that is spread evenly over the vocabulary (0 is off)"
    )
    z_loss: float = Field(0.0, ge=0, description="factor of log² of the softmax's normaliser, often 1e-4 (0 is off)")
    token_accuracy: bool = Field(
        False, description="also the share of trained tokens that are the likeliest ones; the head runs twice"
    )
    answers: tuple[str, ...] = Field(
        (),
        min_length=0,
        max_length=2,
        description="a positive and a negative answer: trained tokens that begin one are counted, too",
    )

    @field_validator("answers", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(each, bool) for each in value):
            raise ValueError(
                f"{value!r} are truth values: YAML reads yes and no so; put the answers in quotes: ['yes', 'no']"
            )
        return value

    @model_validator(mode="after")
    def _two(self) -> Self:
        if len(self.answers) not in (0, 2):
            raise ValueError(
                f"answers={list(self.answers)} has {len(self.answers)}; give two, as in [yes, no], or none"
            )
        return self

    def arguments(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return what ``TokenObjective`` takes. Raises ``UsageError`` where the answers cannot be told apart."""
        from mt_core.nn import LossTerms

        return {"terms": LossTerms(self.label_smoothing, self.z_loss), "scores": self._scores(tokenizer)}

    def _scores(self, tokenizer: Tokenizer) -> TokenScores | None:
        from mt_core.nn import TokenScores

        if not self.answers:
            return TokenScores() if self.token_accuracy else None
        encode = continuation_encoder(tokenizer)  # an answer comes after a prompt
        first, second = (next(iter(encode(text)), None) for text in self.answers)
        if first is None or second is None or first == second:
            raise UsageError(
                f"objective.answers: {self.answers[0]!r} and {self.answers[1]!r} begin with the same token, or with none; give two"
                " that differ in their first token, white space included"
            )
        return TokenScores((first, second))


class FineTuningConfig(TokenLossConfig):
    """Options of a token's loss, of which there are two in fine-tuning."""

    loss: Literal["cross-entropy", "dft"] = Field(
        "cross-entropy",
        description="of a trained token: cross-entropy, or that times the token's probability (DFT, https://arxiv.org/abs/2508.05629)",
    )

    @model_validator(mode="after")
    def _one_loss(self) -> Self:
        if self.loss == "dft" and (self.label_smoothing or self.z_loss):
            raise ValueError(
                "loss=dft has no other terms; leave out label_smoothing and z_loss, or set loss to cross-entropy"
            )
        return self
