"""`python -m eyas.simulator`."""

from eyas.simulator.main import main

if __name__ == "__main__":
    main()
