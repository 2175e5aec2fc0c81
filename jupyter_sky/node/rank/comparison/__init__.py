"""Descriptions and digests of a rank's variables, by which ranks are compared."""
