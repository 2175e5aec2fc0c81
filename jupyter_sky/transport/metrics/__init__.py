"""Figures on their way from ranks to the page: of `sky.log`, and of what a machine uses."""
