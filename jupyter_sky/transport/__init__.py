"""The wire between notebook and nodes: frames, links with a heartbeat, events, compression."""
