"""Values as bytes: pickling, shared objects, blobs, and the user's own modules."""
