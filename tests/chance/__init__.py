"""A test by chance: what users do to a cluster, and what breaks, in any order.

``python -m tests.chance --seed 7 --steps 500`` runs it; what a seed does is always the same.
"""
