"""Scores of multiple choice beside lm-evaluation-harness' own model, on the same folder of weights and the same token ids.

``python benchmarks/evals.py`` prints, for each kind of question, the seconds of a processor, the tokens that are read and the peak
memory of both, in processes of their own, in turn: medians and ratios. The sums are compared first. Needs lm_eval and transformers.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BATCHES = (1, 8, 32)
Asked = list[tuple[list[int], list[int]]]


def letters(chance: random.Random, size: int) -> Asked:
    """Five-shot questions of seven subjects, four letters each: the shots are shared by those of a subject."""
    asked = []
    for _ in range(7):
        shots = _ids(chance, size, 1100)
        for _ in range(5):
            question = shots + _ids(chance, size, chance.randint(60, 140))
            asked += [(question, [letter]) for letter in (5, 6, 7, 8)]
    return asked


def own_shots(chance: random.Random, size: int) -> Asked:
    """Letters after prompts that share nothing."""
    contexts = [_ids(chance, size, chance.randint(250, 450)) for _ in range(40)]
    return [(context, [letter]) for context in contexts for letter in (5, 6, 7, 8)]


def long_choices(chance: random.Random, size: int) -> Asked:
    """Questions with four long choices each, without shots."""
    contexts = [_ids(chance, size, chance.randint(60, 140)) for _ in range(40)]
    return [(context, _ids(chance, size, chance.randint(20, 45))) for context in contexts for _ in range(4)]


KINDS: dict[str, Callable[[random.Random, int], Asked]] = {
    "letters, shared shots": letters,
    "letters, nothing shared": own_shots,
    "long choices": long_choices,
}


def _ids(chance: random.Random, size: int, count: int) -> list[int]:
    return [chance.randrange(10, size) for _ in range(count)]


def write_model(folder: Path, vocabulary: int, layers: int, width: int) -> None:
    """Write a random Llama as transformers has it, with a tokenizer that is never asked."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    config = LlamaConfig(
        **shape, vocab_size=vocabulary, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", bos_token="w2").save_pretrained(folder)


def score_ours(folder: Path, asked: Asked, batch: int) -> Callable[[], list[float]]:
    """Return what scores them with the loaded model."""
    from mt_core.evaluation import Continuation
    from mt_train import load_weights
    from mt_train.evaluate.requests import Requests
    from mt_train.evaluate.scoring import Scorer

    loaded = load_weights("llama", folder)

    def score() -> list[float]:
        requests = Requests.of_continuations([Continuation(*each) for each in asked], loaded.max_seq_len)
        return [each.logprob for each in requests.scores(Scorer(loaded.model, batch_size=batch).values(requests))]

    return score


def score_theirs(folder: Path, asked: Asked, batch: int) -> Callable[[], list[float]]:
    """Return what scores them with HFLM."""
    from lm_eval.models.huggingface import HFLM

    model = HFLM(str(folder), device="cpu", dtype="float32", batch_size=batch)
    texts = [((str(number), ""), *each) for number, each in enumerate(asked)]
    return lambda: [each[0] for each in model._loglikelihood_tokens(texts, disable_tqdm=True)]


def run(side: str, folder: Path, kind: str, batch: int, vocabulary: int) -> dict[str, Any]:
    """Score once in this process."""
    import torch

    torch.set_num_threads(1)
    asked = KINDS[kind](random.Random(1), vocabulary)
    score = (score_ours if side == "ours" else score_theirs)(folder, asked, batch)
    began = time.process_time()
    sums = score()
    seconds = time.process_time() - began
    return {"seconds": seconds, "sums": sums, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _in_turn(
    folder: Path, vocabulary: int, repeats: int
) -> Iterator[tuple[str, int, list[dict[str, Any]], list[dict[str, Any]]]]:
    for kind in KINDS:
        for batch in BATCHES:
            found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
            for _ in range(repeats):
                for side in found:
                    words = ["--run", side, str(folder), kind, str(batch), str(vocabulary)]
                    done = subprocess.run(
                        [sys.executable, __file__, *words], capture_output=True, text=True, check=False
                    )
                    if done.returncode:
                        sys.exit(done.stderr[-3000:])
                    found[side].append(json.loads(done.stdout.splitlines()[-1]))
            yield kind, batch, found["ours"], found["theirs"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--run", nargs=5, metavar="WORD", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        side, folder, kind, batch, vocabulary = given.run
        print(json.dumps(run(side, Path(folder), kind, int(batch), int(vocabulary))))
        return
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), given.vocabulary, given.layers, given.width)
        best: dict[str, tuple[float, float]] = {}
        print(
            f"{'questions':26}{'batch':>6}{'ours s':>9}{'HFLM s':>9}{'ratio':>8}{'ours MB':>9}{'HFLM MB':>9}{'largest difference':>20}"
        )
        for kind, batch, ours, theirs in _in_turn(Path(name), given.vocabulary, given.repeats):
            here, there = (statistics.median(each["seconds"] for each in side) for side in (ours, theirs))
            space = [statistics.median(each["mb"] for each in side) for side in (ours, theirs)]
            apart = _difference(ours[0]["sums"], theirs[0]["sums"])
            print(
                f"{kind:26}{batch:>6}{here:>9.2f}{there:>9.2f}{there / here:>8.2f}{space[0]:>9.0f}{space[1]:>9.0f}{apart:>20.2e}",
                flush=True,
            )
            first, second = best.get(kind, (here, there))
            best[kind] = min(first, here), min(second, there)
        for kind, (here, there) in best.items():
            print(f"{kind}: each at its best batch {there / here:.2f} times as fast")


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference, of the values that are above 1 relative to them."""
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
