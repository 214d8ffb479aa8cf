"""The mergers of Qwen2.5-VL's and Qwen3-VL's folders, read and written. Torch is not imported.

What the keys mean: configuration_qwen2_5_vl.py and configuration_qwen3_vl.py of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, is_whole, open_folder, read_json

if TYPE_CHECKING:
    from torch import Tensor

    from . import MergerConfig


@dataclass(frozen=True)
class MergerNames:
    """What the files of one generation have: the class of whole models, the norm, how names begin, and their words for ours."""

    architecture: str
    norm: str
    prefix: str
    words: Mapping[str, str]

    def values(self, path: Path) -> dict[str, Any]:
        """Return the shape."""
        vision = read_json((path.parent if path.is_file() else path) / CONFIG).get("vision_config") or {}
        levels = vision.get("deepstack_visual_indexes", LEVELS) if self.norm == "layer" else ()
        return {"factor": vision.get("spatial_merge_size", 2), "norm": self.norm, "levels": len(levels)}

    def tensors(self, path: Path, config: MergerConfig) -> Loaders:
        """Return one loader for each tensor, under our names."""
        found = {name.removeprefix("model."): load for name, load in open_folder(path).items()}
        return {ours: found[theirs] for theirs, ours in self._names(config).items() if theirs in found}

    def exported(self, config: MergerConfig) -> dict[str, Any]:
        """Return the keys of ``config.json``. Raises ``WeightsError`` for a merger that no folder has."""
        if config.eps != EPS:
            raise WeightsError(f"the merger projector has eps={config.eps}, and those of Qwen {EPS}; keep the run's checkpoint")
        return {"architectures": [self.architecture]}

    def written(self, config: MergerConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
        """Return the tensors under the names of a folder."""
        return {f"{self.prefix}{theirs}": loaders[ours] for theirs, ours in self._names(config).items()}

    def _names(self, config: MergerConfig) -> dict[str, str]:
        """Their names → ours."""
        places = {"visual.merger.": ""}
        places |= {f"visual.deepstack_merger_list.{level}.": f"deepstack.{level}." for level in range(config.levels)}
        return {
            f"{place}{theirs}": f"{own}{ours}" for place, own in places.items() for theirs, ours in self.words.items()
        }


EPS = 1e-6
LEVELS = (8, 16, 24)
"""``deepstack_visual_indexes`` where nothing is said."""
_MLP = {f"mlp.{at}.{kind}": f"mlp.{at}.{kind}" for at in (0, 2) for kind in ("weight", "bias")}
QWEN2_5 = MergerNames(
    "Qwen2_5_VLForConditionalGeneration", "rms", "", {"ln_q.weight": "ln_q.weight", **_MLP}
)
QWEN3 = MergerNames(
    "Qwen3VLForConditionalGeneration",
    "layer",
    "model.",
    {
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in (("norm", "ln_q"), ("linear_fc1", "mlp.0"), ("linear_fc2", "mlp.2"))
        for kind in ("weight", "bias")
    },
)


def _format(names: MergerNames) -> WeightsFormat:
    return WeightsFormat(
        name=names.architecture,
        matches=lambda path: is_whole(path, names.architecture),
        values=names.values,
        tensors=names.tensors,
        exported=names.exported,
        written=names.written,
    )


FORMATS = (_format(QWEN2_5), _format(QWEN3))
