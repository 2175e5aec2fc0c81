"""The Jupyter Server extension behind the sidebar."""
