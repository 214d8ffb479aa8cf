"""A model behind OpenAI's API: the command ``mt-serve``.

To be read in this order: ``errors`` and ``fields`` (what a request may say), ``sampling``, ``chat`` and ``completions`` (requests to
plans), ``scores`` (log-probabilities of tokens), ``answers`` (tokens to pieces of an answer), ``models`` (what is served),
``pace`` and ``engine`` (the thread of the model), ``metrics``, ``access`` (who may ask), ``http`` and ``app`` (requests and answers on the
wire), ``server`` and ``command``.
"""
