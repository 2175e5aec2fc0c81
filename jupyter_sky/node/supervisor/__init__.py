"""Rank processes as the agent sees them: starting, stopping, output, the reason of an exit."""
