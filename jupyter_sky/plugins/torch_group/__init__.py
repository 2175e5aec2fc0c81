"""torch's process group: formed, put in the place of a former one, and found by frameworks."""
