"""Names of options of the Trainer, TRL, peft, LLaMA-Factory, axolotl, ms-swift and others, and what they are called here."""

from __future__ import annotations

from .axolotl import AXOLOTL
from .components import FOREIGN_COMPONENTS
from .llama_factory import LLAMA_FACTORY
from .others import HARNESS, LAUNCHERS, LIGHTNING, QLORA
from .peft import PEFT
from .peft import SHARED as LORA
from .swift import SWIFT
from .trainer import TRAINER
from .trl import SHARED, TRL

__all__ = ["FOREIGN_COMPONENTS", "FOREIGN_NAMES"]

FOREIGN_NAMES: dict[str, dict[str, str]] = {
    "the Hugging Face Trainer": TRAINER,
    "torchrun and accelerate": LAUNCHERS,
    "TRL and LLaMA-Factory": SHARED,
    "TRL": TRL,
    "peft and LLaMA-Factory": LORA,
    "peft": PEFT,
    "LLaMA-Factory": LLAMA_FACTORY,
    "qlora.py": QLORA,
    "axolotl": AXOLOTL,
    "ms-swift": SWIFT,
    "lm-evaluation-harness": HARNESS,
    "torch and Lightning": LIGHTNING,
}
"""Where a name comes from → what it is here, up to a remark behind a semicolon → the names, with spaces between.

A name that ends in ``*`` stands for all that begin so and are not named themselves.
"""
