"""A cell below ``%%sky``: how it becomes a run, and runs again where it lost a rank or a node."""
