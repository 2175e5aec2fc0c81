"""Releasing what clusters have rented: found by tags, ended, and verified to be gone."""
