"""How things travel: frames on links, pickling of values, blobs."""
