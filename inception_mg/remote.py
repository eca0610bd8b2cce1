"""Files whose path has a scheme, such as gs://: what files.py does with local ones, done by TensorFlow's file layer.

TensorFlow is imported when the first such path is met, and nowhere else on this floor. Its errors become those of the
standard library, so that nobody else need know where a file is.
"""

import contextlib
import errno
import importlib
import importlib.util
from collections.abc import Iterator

from inception_mg.errors import FlagError, UserError
from inception_mg.paths import scheme_of
from inception_mg.reasons import reason_of


def check_scheme(name: str, path: str) -> None:
    """Raises FlagError where TensorFlow does not know the scheme of `path`; name: of the flag, such as '--train_dir'.

    tensorflow-io is asked, too, where it is installed: it brings s3, hdfs, viewfs and others.
    """
    import tensorflow as tf
    scheme, known = scheme_of(path), tf.io.gfile.get_registered_schemes
    if scheme not in known() and importlib.util.find_spec('tensorflow_io'):
        try:
            importlib.import_module('tensorflow_io')
        except Exception as error:  # noqa: BLE001 (Whatever a build for another TensorFlow raises.)
            raise FlagError(f'{name}={path}: {scheme}:// needs tensorflow-io, which cannot be loaded: '
                            f'{reason_of(error)}') from None
    if scheme not in known():
        there = ', '.join(f'{one}://' for one in sorted(set(known()) - {'', 'ram'}))
        raise FlagError(f'{name}={path}: this TensorFlow does not know {scheme}://, only {there}: install '
                        'tensorflow-io for others, or name a folder where it is mounted')


@contextlib.contextmanager
def layer(path: str) -> Iterator:
    """Yields tf.io.gfile; within, its errors become OSError of the kind that Python has for them, naming `path`."""
    import tensorflow as tf
    errors = tf.errors
    kinds = {errors.NotFoundError: (errno.ENOENT, 'it is not there'), errors.AlreadyExistsError: (errno.EEXIST, ''),
             errors.PermissionDeniedError: (errno.EACCES, ''), errors.UnauthenticatedError: (errno.EACCES, '')}
    try:
        yield tf.io.gfile
    except errors.OpError as error:
        number, text = kinds.get(type(error), (errno.EIO, ''))
        raise OSError(number, text or reason_of(error), path) from None


@contextlib.contextmanager
def looking(path: str) -> Iterator:
    """As `layer`, for questions whether something is there: UserError without an answer, for that is not a no."""
    try:
        with layer(path) as gfile:
            yield gfile
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f'cannot look at {path}: {error.strerror}') from None


def read(path: str, limit: int = -1) -> bytes:
    with layer(path) as gfile, gfile.GFile(path, 'rb') as file:
        return file.read(limit) if limit >= 0 else file.read()


def write(path: str, data: bytes) -> None:
    """Under another name first: an object store shows what is whole only, other file systems show halves."""
    with layer(path) as gfile:
        temporary = f'{path}.new'
        with gfile.GFile(temporary, 'wb') as file:
            file.write(data)
        gfile.rename(temporary, path, overwrite=True)


def append(path: str, data: bytes) -> None:
    with layer(path) as gfile, gfile.GFile(path, 'ab') as file:
        file.write(data)


def names(folder: str) -> list[str]:
    with looking(folder) as gfile:
        return [name.rstrip('/') for name in gfile.listdir(folder)]


def size(path: str) -> int:
    with layer(path) as gfile:
        return gfile.stat(path).length


def exists(path: str) -> bool:
    with looking(path) as gfile:
        return gfile.exists(path)


def is_folder(path: str) -> bool:
    with looking(path) as gfile:
        return gfile.exists(path) and gfile.isdir(path)  # ram:// takes the beginning of a file's name for a folder.


def make_folder(path: str) -> None:
    with layer(path) as gfile:
        gfile.makedirs(path)


def remove(path: str) -> None:
    with layer(path) as gfile:
        gfile.remove(path)


def remove_tree(path: str) -> None:
    with layer(path) as gfile:
        if gfile.exists(path):
            gfile.rmtree(path)


def rename(path: str, target: str) -> None:
    with layer(path) as gfile:
        gfile.rename(path, target, overwrite=True)


def copy(path: str, target: str) -> None:
    with layer(path) as gfile:
        gfile.copy(path, target, overwrite=True)
