"""The public names of ``mt_train.generation``, and where each is defined."""

from mt_train.generation.continuation import Continuer as Continuer
from mt_train.generation.decoder import Decoder as Decoder
from mt_train.generation.prompt_scores import PromptScores as PromptScores
from mt_train.generation.prompt_thread import PromptThread as PromptThread
from mt_train.generation.request import PromptIds as PromptIds
from mt_train.generation.request import Request as Request
from mt_train.generation.request import TokenOutput as TokenOutput
from mt_train.generation.request import TokenScore as TokenScore
from mt_train.generation.request import split_prompt as split_prompt
from mt_train.generation.text import GrowingText as GrowingText
from mt_train.generation.tool_calls import Call as Call
from mt_train.generation.tool_calls import CallReader as CallReader
from mt_train.generation.tool_calls import find_call_reader as find_call_reader
