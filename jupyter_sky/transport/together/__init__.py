"""Joins messages and reads of many ranks and nodes, to reduce the cost per rank."""
