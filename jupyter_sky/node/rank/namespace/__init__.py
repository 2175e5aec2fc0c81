"""The names on a rank: values and modules that the notebook sent, and what it asks for."""
