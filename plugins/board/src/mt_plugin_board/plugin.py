"""Entry point of the board: it offers no component. It is listed, so that an installation says which commands it has."""

from __future__ import annotations
