"""Requests to an agent: those without an answer, answers of many as one, what was received."""
