"""Metrics that ranks log with `sky.log` or the loggers of libraries."""
