"""`mutua` and `python -m mutua`: a process of our own, in which Ctrl-C never leaves a traceback."""

import signal
import sys


def main() -> None:
    """Run the command line as a process."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:  # while what it takes is imported, it just ends
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mutua.cli import commands
    from mutua.support import signals

    if hears:
        signals.handle_ctrl_c()
    try:
        try:
            commands.main()
        finally:
            signals.begin_exit()
            if hears:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # between two lines of ours
        sys.exit("mutua: stopped by Ctrl-C")


if __name__ == "__main__":
    main()
