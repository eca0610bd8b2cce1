"""The one exception that means "the user can mend this": programs print it as one line."""


class UserError(Exception):
    """Bad input: the message is one line that names the culprit and says what to do.

    Programs in scripts/ print it on stderr without a traceback and exit with `exit_code`.
    """

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


class FlagError(UserError):
    """A flag's value is wrong; exits with 2, the code for bad flags."""

    def __init__(self, message: str):
        super().__init__(message, exit_code=2)
