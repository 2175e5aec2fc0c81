"""The notebook's changes to values that a rank has: each is made in what is here."""
