"""Templates: processes that have imported what others need, and fork on request."""
