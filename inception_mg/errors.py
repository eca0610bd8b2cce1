"""The exit codes, and the one exception that means "the user can mend this": programs print it as one line."""

EXIT_FAILED = 1     # Starting it again would fail again.
EXIT_FLAGS = 2      # Bad flags, host lists or TF_CONFIG.
EXIT_RETRY = 138    # The rest of the cluster was lost: start this task again. Programs say it by --retry_exit_code;
                    # 138, since Kubeflow's operator takes 1 to 127 for final, and other managers can be told.
EXIT_SIGINT = 130   # Ended by SIGINT, SIGKILL or SIGTERM, as a shell would say it.
EXIT_SIGKILL = 137
EXIT_SIGTERM = 143


def told(code: int, retry_exit_code: int) -> int:
    """The exit code with which a program says `code`: EXIT_RETRY is said by --retry_exit_code."""
    return retry_exit_code if code == EXIT_RETRY else code


class UserError(Exception):
    """Bad input: the message is one line that names the culprit and says what to do.

    Programs in scripts/ print it on stderr without a traceback and exit with `exit_code`.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED):
        super().__init__(message)
        self.exit_code = exit_code


class Diverged(UserError):
    """The weights, or what follows from them, are no longer finite: there is nothing worth saving."""


class FlagError(UserError):
    """A flag's value is wrong; exits with EXIT_FLAGS."""

    def __init__(self, message: str):
        super().__init__(message, exit_code=EXIT_FLAGS)
