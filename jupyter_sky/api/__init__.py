"""The Python face: what a person imports as `sky`."""
