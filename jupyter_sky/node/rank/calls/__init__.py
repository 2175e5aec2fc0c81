"""Calls that a rank carries out one by one, and what is said while one goes on."""
