"""Small files that others may read while they are written: under a temporary name first. Standard library only."""

import os

from inception_mg.errors import UserError


def write_text(path: str, text: str) -> None:
    """Writes `text` as UTF-8, so that a reader sees the old file or the new one; UserError where it cannot."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f'.{name}.{os.getpid()}')
    try:
        with open(temporary, 'w', encoding='utf-8', newline='\n') as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f'cannot write {path}: {error.strerror}') from None
