"""The public names of ``mt_tools``, and where each is defined."""

from mt_tools.api import evaluate as evaluate
from mt_tools.api import export_run as export_run
from mt_tools.api import generate as generate
from mt_tools.convert.writing import save_folder as save_folder
from mt_tools.convert.writing import stage_folder as stage_folder
from mt_tools.convert.writing import write_json as write_json
from mt_tools.convert.writing import write_tensors as write_tensors
from mt_tools.generation.prompts import chat_ids as chat_ids
from mt_tools.generation.prompts import template_of as template_of
from mt_tools.generation.prompts import text_ids as text_ids
from mt_tools.generation.source import add_source_options as add_source_options
from mt_tools.generation.source import expand_paths as expand_paths
from mt_tools.generation.source import open_source as open_source
from mt_tools.generation.source import source_faults as source_faults

__version__: str
