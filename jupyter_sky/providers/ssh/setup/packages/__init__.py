"""The packages of an image on a host: its environment, made by uv, and system packages."""
