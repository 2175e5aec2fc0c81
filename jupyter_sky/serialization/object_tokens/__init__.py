"""Tokens: numbers by which the notebook and ranks refer to objects that both have."""
