"""What a run is asked to do: reading, defaults, checks and changes of a `RunSpec`."""
