"""A call that may hang, as calls into a cluster may: given up after a while. Standard library only."""

import threading
from collections.abc import Callable


def bounded(call: Callable[[], object], limit: float) -> bool:
    """Runs call() in a thread of its own and returns whether it ended within `limit` seconds; its
    exceptions are raised here. A call that hangs is left behind."""
    errors = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    return not thread.is_alive()
