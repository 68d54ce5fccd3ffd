"""The one exception that is addressed to the person at the keyboard."""


class UserError(Exception):
    """Bad input. Its message is one line: what is wrong, where, and what to do.

    Commands print it without a traceback and leave with exit code 2; everything else that is
    raised is a bug or a failure and keeps its traceback.
    """
