"""Configuration: what a run is, how it is written and how its faults are reported."""
