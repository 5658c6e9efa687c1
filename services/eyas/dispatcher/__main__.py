"""`python -m eyas.dispatcher`."""

from eyas.dispatcher.main import main

if __name__ == "__main__":
    main()
