"""The SSH client: targets, configuration, authentication, host keys, channels."""
