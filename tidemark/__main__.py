"""`python -m tidemark` is the `tidemark` script."""

from tidemark.cli import main

if __name__ == "__main__":
    main()
