"""What a generator knows and says, without I/O and told the time."""
