"""The Slurm provider: nodes are those of a job, from the queue of the user's own cluster."""
