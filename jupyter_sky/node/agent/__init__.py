"""The agent: it serves clients, keeps the journal, and ends the node when nobody uses it."""
