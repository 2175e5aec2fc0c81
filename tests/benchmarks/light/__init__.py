"""Clusters of many nodes on one machine: real agents and links, and ranks that only answer."""
