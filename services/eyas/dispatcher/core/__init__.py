"""What the dispatcher decides, as state machines that are told the time. No I/O, and no messages."""
