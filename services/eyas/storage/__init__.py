"""What a run keeps: objects, logs of numbered parts, the layout of a run, and its tables."""
