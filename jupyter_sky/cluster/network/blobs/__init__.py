"""Blobs that come from nodes, and blobs in memory that a node on this computer shares with us."""
