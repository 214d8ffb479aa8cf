"""The conformance kit was here."""

raise ImportError(
    "mt_core.testing is the distribution mt-conformance now: pip install mt-conformance, and write mt_conformance",
    name=__name__,
)
