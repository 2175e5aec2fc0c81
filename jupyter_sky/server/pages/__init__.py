"""Pages of nodes in the browser: ways to them, and the requests that are passed on."""
