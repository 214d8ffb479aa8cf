"""Names of the files and folders that the core writes into a run's folder."""

from __future__ import annotations

LOCK = ".lock"
SAVE_REQUEST = "save"  # the file with which somebody asks for a checkpoint
COMPLETED = "completed"  # the file of a run that has come to its end
FILES = frozenset(
    {
        LOCK,
        SAVE_REQUEST,
        "run.yaml",
        "about.json",
        "samples.jsonl",
        "evaluations.jsonl",
        "events.jsonl",
        "rollouts.jsonl",
        "report.html",
        "plugins.lock.json",
        "metrics.jsonl",
        "loss.png",
        "reference.safetensors",
        COMPLETED,
        "metrics.jsonl.damaged",
        "samples.jsonl.damaged",
        "evaluations.jsonl.damaged",
        "events.jsonl.damaged",
        "rollouts.jsonl.damaged",
        ".tmp-run.yaml",
        ".tmp-about.json",
        ".tmp-plugins.lock.json",
        ".tmp-metrics.jsonl",
        ".tmp-samples.jsonl",
        ".tmp-evaluations.jsonl",
        ".tmp-events.jsonl",
        ".tmp-rollouts.jsonl",
        ".tmp-loss.png",
        ".tmp-reference.safetensors",
        ".tmp-probe",
        ".tmp-probed",
    }
)
FOLDERS = {
    "logs": ("rank-*.log", "supervisor.log"),
    "eval": ("[0-9][0-9][0-9]*",),
    "tensorboard": ("events.out.tfevents.*",),
    "checkpoints": ("latest", ".tmp-latest", "step-????????", ".tmp-*step-????????"),
}
"""With ``FILES`` all that the core writes into a run's folder; ``--overwrite`` removes nothing else but what
``folder.read_record`` names."""
ABOUT, RECORD = "about.json", "files"
"""File, and its key, in which a run keeps the names of what its components write beside that."""

_LATER = frozenset(
    {"report.html", "loss.png", COMPLETED, ".tmp-loss.png", ".tmp-events.jsonl"}
    | {name for name in FILES if name.endswith(".damaged")}
)
BEFORE_THE_FIRST_STEP = (FILES - _LATER) | {"logs", "tensorboard"}
"""Files of these that are there before a run has trained anything: no checkpoint, curve or evaluation, and files of figures are empty."""
