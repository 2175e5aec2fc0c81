"""Nodes with homes of their own: each is made ready through steps of the job."""
