"""`python -m mutua`."""

from mutua.cli.process import main

if __name__ == "__main__":
    main()
