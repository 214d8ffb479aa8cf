"""Text from a trained model.

To be read in this order: ``config`` (what can be asked), ``load``, ``prompts`` (text to ids), ``history`` and ``sampling``
(logits to a token), ``choices``, ``decode`` and ``beams`` (prompts to tokens), ``text`` (tokens to text), ``generation``
(what others call), then ``rows``, ``output``, ``progress`` and ``answers`` (files of prompts) and ``chat``.
"""
