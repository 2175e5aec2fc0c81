"""Metrics that ranks have logged, within limits, as curves and tables; and resource usage."""
