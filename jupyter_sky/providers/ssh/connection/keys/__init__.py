"""Which keys of the user a host is shown: those of ssh-agent and of files, and certificates."""
