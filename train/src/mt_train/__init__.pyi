"""The public names of ``mt_train``, and where each is defined."""

from mt_train.adapters.several import SeveralAdapters as SeveralAdapters
from mt_train.api import check_config as check_config
from mt_train.api import load_adapters as load_adapters
from mt_train.api import load_config as load_config
from mt_train.api import load_over_base as load_over_base
from mt_train.api import load_run as load_run
from mt_train.api import load_weights as load_weights
from mt_train.api import train as train
from mt_train.assemble.outcome import Outcome as Outcome
from mt_train.config.run import RunConfig as RunConfig
from mt_train.data.online import CollectsAnswers as CollectsAnswers
from mt_train.data.online import Policy as Policy
from mt_train.data.online import Prompt as Prompt
from mt_train.data.online import Record as Record
from mt_train.generation.backend import Backend as Backend
from mt_train.generation.loaded_model import LoadedModel as LoadedModel
from mt_train.tracking.failures import describe_failure as describe_failure

__version__: str
