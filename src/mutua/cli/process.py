"""`mutua` and `python -m mutua`: a process of its own, in which Ctrl-C never leaves a traceback."""

import signal
import sys


def main() -> None:
    """Run the command line as a process."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # during the imports Ctrl-C just ends the process
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mutua.cli.app import command_line
    from mutua.support import signals

    if interruptible:
        signals.handle_ctrl_c()
    try:
        try:
            command_line()
        finally:
            signals.begin_exit()
            if interruptible:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # between two of the lines above
        sys.exit("mutua: stopped by Ctrl-C")
