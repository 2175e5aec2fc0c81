"""What names blobs in messages: pickled values, and folders that are sent."""
