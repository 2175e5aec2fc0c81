"""The connection to each agent: requests, reconnection, blobs, failure detection."""
