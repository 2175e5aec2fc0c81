"""Between agents: mutual TLS, port checks, the choice of an address."""
