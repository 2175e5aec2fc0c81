"""The Slurm provider: nodes of a job, from the queue of the user's own cluster."""
