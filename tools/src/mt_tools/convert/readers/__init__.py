"""Programs that open an exported folder with somebody else's code, in that code's own environment; none of ours is imported there.

Each reads one JSON object from standard input, ``{"folder", "base", "rank", "rows", "texts", "most", "ends"}``, and writes one as the last
line of standard output: ``{"version", "answers": [{"ids", "ended"}], "texts": [[id]] | null}``. ``base`` is the folder that an adapter goes
over, ``rows`` are prompts as ids, and ``ends`` the ids that end a text where the folder itself cannot say so.
"""
