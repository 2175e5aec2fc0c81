"""Requests of ranks to the volumes of their node."""
