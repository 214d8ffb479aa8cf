"""A local page of all runs, live: the command ``mt-board``. Read ``scan`` and ``index`` (which runs there are), ``tail``, ``reader`` and
``view`` (one of them as it grows), ``access`` and ``server`` (who may ask, and what is answered), ``command``."""
