"""``mt-train --help`` on one screen: what people set. Nothing of a plugin is imported for it."""

from __future__ import annotations

SHORT_HELP = """usage: mt-train --model NAME [--config FILE] [--key value …]

Trains a language model. What people set, an example each:
  --model llama                    the family
  --model.weights FOLDER|ORG/NAME  start from these weights; --model.variant tiny: from nothing, in this size
  --dataset jsonl                  where rows are from, with --dataset.path rows.jsonl; without it a demo
  --adapter lora                   train an adapter; without it all weights
  --optimizer.lr 1e-4              its learning rate; --optimizer NAME, --schedule NAME for others
  --train.steps 500                or --train.epochs 2
  --train.global-batch-size 32     rows of a step, on all devices together
  --data.max-len 256               tokens of the longest sample
  --checkpoint.every-steps 100     how often the run is saved
  --recipe lora                    begin with a recipe; options win over it
  --config run.yaml                the same keys from a file; the command line wins
  --output runs/mine               the run's folder; --overwrite replaces it, --resume auto goes on in it
  --nproc-per-node auto            one process for each GPU of this machine
  --dry-run                        check everything, show the plan with its memory, start nothing
  --print-config                   every value and where it came from

The rest:
  mt-train --help all              every option; --help data: of a section or kind; --help warmup: by a word
  mt-train --model llama --help    with those of the model, and of whatever else is named
  mt-train --completion bash       what completes options and names in bash, zsh or fish
  mt-plugins list --components     everything that has a name"""
