"""What a rank reports while its main thread is busy: stacks and collectives."""
