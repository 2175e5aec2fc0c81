"""Scripts: shell blocks, `torchrun`, and task files of SkyPilot, once on each node."""
