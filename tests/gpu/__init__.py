"""What only a machine with an NVIDIA GPU can show, and a stand-in of its driver for all others."""
