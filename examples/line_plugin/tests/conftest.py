"""The fixtures of the conformance kit: ``pip install mt-conformance``."""

pytest_plugins = ["mt_conformance.fixtures"]
