"""What a rank tells of itself while its main thread is busy: stacks and collectives."""
