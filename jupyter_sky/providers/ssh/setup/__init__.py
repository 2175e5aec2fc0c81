"""From a host to a node: probe, environment, code, files, agent."""
