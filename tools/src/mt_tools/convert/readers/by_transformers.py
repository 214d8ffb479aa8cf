"""Continue prompts with transformers, and with peft where the folder is an adapter."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    import torch
    import transformers

    folder = asked["base"] or asked["folder"]
    version = f"transformers {transformers.__version__}"
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    ends = model.generation_config.eos_token_id
    if asked["base"]:
        import peft

        model = peft.PeftModel.from_pretrained(model, asked["folder"])
        version, ends = f"{version} with peft {peft.__version__}", asked["ends"]
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    wanted = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=asked["most"], eos_token_id=listed or None, pad_token_id=0
    )
    (
        model.get_base_model() if asked["base"] else model
    ).generation_config = wanted  # alone: what it leaves out is the folder's
    model.generation_config = wanted
    answers = []
    for row in asked["rows"]:
        ids = torch.tensor([row])
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))[0, len(row) :].tolist()
        answers.append({"ids": found, "ended": bool(found) and found[-1] in listed})
    print(
        json.dumps({"version": version, "answers": answers, "texts": read_texts(transformers, folder, asked["texts"])})
    )


def read_texts(transformers: Any, folder: str, texts: list[str]) -> list[list[int]] | None:
    """Return the ids of each text; ``None`` where the folder has no tokenizer."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [list(tokenizer(text)["input_ids"]) for text in texts]


if __name__ == "__main__":
    main()
