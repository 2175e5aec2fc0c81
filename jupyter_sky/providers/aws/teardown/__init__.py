"""Giving back what clusters have rented: found by its tags, ended, and seen to be gone."""
