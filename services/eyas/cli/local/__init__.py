"""A whole run on this machine: the services as child processes, and the launcher of the stages' own."""
