"""Settings of the notebook's process, other than its names, that ranks take over."""
