"""The command `eyas`: one module a command, and in `local` what runs a whole run on this machine."""
