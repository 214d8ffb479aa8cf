"""A run as one page: what ``mt-report`` reads from a run's folder, and the HTML that it writes.

Reading order: ``run`` (a folder), ``series`` and ``curves`` (its figures), ``evaluations`` and ``predictions`` (what it was
asked), ``rollouts`` and ``alarms`` (what it learned from), ``settings`` (its config), ``summary`` (its head), ``sections``,
``answers`` and ``charts`` (the parts of the page), ``page`` (the whole), ``output`` (the file). ``rows`` and ``data_page``
show what ``mt-data inspect`` found in the same style. Nothing here imports torch or matplotlib.
"""
