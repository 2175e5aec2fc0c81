"""Templates: processes that have imported what others need, and fork them; how they are asked."""
