"""Sessions with AWS, for machines and for buckets."""
