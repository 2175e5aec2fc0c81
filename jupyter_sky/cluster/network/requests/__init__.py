"""Requests that wait for an agent's answer, answers of many nodes as one, and received events."""
