"""Whether the ranks are alike: what their names stand for, and where they differ first."""
