"""The fixtures of the conformance kit: ``pip install 'mt-core[testing]'``."""

pytest_plugins = ["mt_core.testing.fixtures"]
