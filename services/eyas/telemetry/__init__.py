"""What every service tells about itself: logs, metrics, health; and how it starts and ends."""
