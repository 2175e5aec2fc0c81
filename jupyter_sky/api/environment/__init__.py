"""What nodes get beside what was named: what the notebook imports, or what a file says."""
