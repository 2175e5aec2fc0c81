"""Nodes with their own homes: each is prepared by steps of the job."""
