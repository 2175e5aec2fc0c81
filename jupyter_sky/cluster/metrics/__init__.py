"""Figures that ranks have logged in a run: kept within limits, as curves and as a table."""
