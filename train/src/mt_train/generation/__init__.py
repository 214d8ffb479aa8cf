"""Text from a trained model.

To be read in this order: ``mt_core.generation`` (what can be asked), ``history`` and ``sampling`` (logits to a token), ``choices``,
``text`` (tokens to text), ``request`` (what a decoder is asked for, and a row on its way), ``products`` and ``forward`` (where the model
runs), ``row_cache`` (rows of a cache), ``intake`` (prompts into a cache), ``row_sampling``, ``decoder`` (rows join, step and leave),
``prompt_scores``, ``beams``, ``continuation`` (prompts to texts), ``tool_calls``
(calls in a text). What commands add is in ``mt_tools.generation``.

The names in ``__init__.pyi`` are public, for commands of plugins that decode. Importing it imports no torch; taking a name does.
"""

from __future__ import annotations

from mt_core.lazy import importer

__getattr__ = importer(__name__, __file__)
