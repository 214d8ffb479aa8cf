"""Figures of a server in the text form of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds (s) of the histogram of how long texts wait for their first token."""


class Metrics:
    """Figures of one server. The thread of the model counts all but answers and prompts, which the event loop counts."""

    def __init__(self) -> None:
        self.running = self.waiting = self.cache_places = 0
        self.steps = self.new_tokens = self.prompt_tokens = self.cancelled = 0
        self.answers: Counter[tuple[str, int]] = Counter()
        self._waits: list[int] = [0] * (len(BUCKETS) + 1)
        self._waited = 0.0

    def first_token(self, seconds: float) -> None:
        """Count how long a text waited for its first token."""
        self._waits[sum(seconds > bound for bound in BUCKETS)] += 1
        self._waited += seconds

    def mean_seconds(self) -> float:
        """Return how long texts have waited for their first token, on average; 1 s at least."""
        return max(1.0, self._waited / max(1, sum(self._waits)))

    def text(self) -> str:
        """Return all of them."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _figure(
            "running_texts", "gauge", "texts that have a row of a batch, or are being taken in", self.running
        )
        yield from _figure("waiting_texts", "gauge", "texts that wait for a row", self.waiting)
        yield from _figure(
            "cache_places", "gauge", "places of the cache (rows times tokens) allocated", self.cache_places
        )
        yield from _figure("steps_total", "counter", "steps of the decoder", self.steps)
        yield from _figure("new_tokens_total", "counter", "tokens produced", self.new_tokens)
        yield from _figure("prompt_tokens_total", "counter", "tokens of prompts taken", self.prompt_tokens)
        yield from _figure("cancelled_total", "counter", "requests whose client went away", self.cancelled)
        yield from _head("requests_total", "counter", "requests answered")
        for (path, status), count in sorted(self.answers.items()):
            yield f'mt_serve_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _head("first_token_seconds", "histogram", "from a request to the first token of a text")
        counted = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._waits, strict=True):
            counted += count
            yield f'mt_serve_first_token_seconds_bucket{{le="{bound}"}} {counted}'
        yield f"mt_serve_first_token_seconds_sum {self._waited}"
        yield f"mt_serve_first_token_seconds_count {counted}"


def _figure(name: str, kind: str, said: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, said)
    yield f"mt_serve_{name} {value}"


def _head(name: str, kind: str, said: str) -> Iterator[str]:
    yield f"# HELP mt_serve_{name} {said}"
    yield f"# TYPE mt_serve_{name} {kind}"
