"""Where the ranks are: what each of them does, and which of them the others wait for."""
