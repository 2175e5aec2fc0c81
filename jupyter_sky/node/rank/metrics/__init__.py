"""Figures that ranks log: from `sky.log` and from the loggers of libraries, to the notebook."""
