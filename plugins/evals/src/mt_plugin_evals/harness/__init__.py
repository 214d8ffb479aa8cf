"""lm-evaluation-harness over the model of a run (https://github.com/EleutherAI/lm-evaluation-harness)."""
