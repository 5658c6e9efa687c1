"""`python -m eyas.cli`, the same as `eyas`."""

from eyas.cli.main import main

if __name__ == "__main__":
    main()
