"""The public names of ``mt_core.adapters``, and where each is defined."""

from mt_core.adapters.base import PeftForm as PeftForm
from mt_core.adapters.config import names as names
from mt_core.adapters.linear import LinearAdapter as LinearAdapter
from mt_core.adapters.linear import Place as Place
from mt_core.adapters.linear import adapted_layers as adapted_layers
from mt_core.adapters.linear import device_of as device_of
from mt_core.adapters.linear import merge as merge
from mt_core.adapters.linear import read_base as read_base
from mt_core.adapters.linear import unmerge as unmerge
from mt_core.adapters.linear import write_base as write_base
from mt_core.adapters.lora import LoraLinear as LoraLinear
from mt_core.adapters.lora import LowRankLinear as LowRankLinear
from mt_core.adapters.lora import uniform as uniform
from mt_core.adapters.peft import form_of_type as form_of_type
from mt_core.adapters.peft import lora_form as lora_form
from mt_core.adapters.peft import lora_options as lora_options
from mt_core.adapters.peft import low_rank_options as low_rank_options
from mt_core.adapters.peft import names_option as names_option
from mt_core.adapters.peft import patterns_option as patterns_option
from mt_core.adapters.peft import rank_keys as rank_keys
from mt_core.adapters.peft import target_keys as target_keys
from mt_core.adapters.peft import targets_option as targets_option
from mt_core.adapters.peft import tensor_names as tensor_names
from mt_core.adapters.targets import linear_layers as linear_layers
from mt_core.adapters.targets import require_named as require_named
from mt_core.adapters.targets import targets_of as targets_of
