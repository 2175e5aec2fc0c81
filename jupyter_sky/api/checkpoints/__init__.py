"""Checkpoints of training, based on torch.distributed.checkpoint."""
