"""Metrics on their way from ranks to the page: those of `sky.log`, and resource usage."""
