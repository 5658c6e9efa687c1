"""`python -m eyas.generator`."""

from eyas.generator.main import main

if __name__ == "__main__":
    main()
