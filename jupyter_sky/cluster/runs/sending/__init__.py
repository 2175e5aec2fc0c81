"""From a run to its ranks: the request, how it is sent, what is recorded, how its parts end."""
