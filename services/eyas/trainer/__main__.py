"""`python -m eyas.trainer`: trains the drafter of a run, and exits with 0 when it is done."""

from eyas.trainer.main import main

if __name__ == "__main__":
    main()
