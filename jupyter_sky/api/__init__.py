"""The Python interface: what a user imports as `sky`."""
