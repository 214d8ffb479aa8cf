"""Text from a trained model.

To be read in this order: ``mt_core.generation`` (what can be asked), ``history`` and ``sampling`` (logits to a token), ``choices``,
``text`` (tokens to text), ``request`` (what a decoder is asked for, and a row on its way), ``forward`` (where the model runs), ``intake``
(prompts into a cache), ``row_sampling``, ``decoder`` (rows join, step and leave), ``beams``, ``continuation`` (prompts to texts). What
commands add is in ``mt_tools.generation``.
"""
