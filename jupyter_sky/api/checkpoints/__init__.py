"""Checkpoints of what ranks train, on torch.distributed.checkpoint."""
