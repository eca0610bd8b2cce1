"""Paths that are given by flags: one way to read them, for every program. Standard library only.

TensorFlow takes the paths of checkpoints as patterns, also where it deletes old ones: a train_dir named `a*` would
lose the checkpoints of its neighbour `abc`. So such a name is refused, wherever something is written, or a checkpoint
or a model is read.
"""

import os
import re
from collections.abc import Mapping

from inception_mg.errors import FlagError

FOLDER, RECORDS, CHECKPOINT, FILE, EITHER = 'folder', 'records', 'checkpoint', 'file', 'either'
# What the flags of all programs that are paths stand for: a folder that TensorFlow, or a program, writes or reads
# checkpoints in; a folder that is only read, file by file; a folder, a checkpoint in it or a file of weights; a file;
# a folder or an archive of one.
FLAGS: Mapping[str, str] = {
    'train_dir': FOLDER, 'eval_dir': FOLDER, 'report_dir': FOLDER, 'export_dir': FOLDER, 'output_directory': FOLDER,
    'log_directory': FOLDER, 'checkpoint_dir': CHECKPOINT, 'pretrained_model_checkpoint_path': CHECKPOINT,
    'input': CHECKPOINT, 'data_dir': RECORDS, 'train_directory': EITHER, 'validation_directory': EITHER,
    'source': EITHER, 'image_list': FILE, 'labels_file': FILE, 'bounding_box_file': EITHER,
    'imagenet_metadata_file': FILE, 'validation_labels': EITHER, 'json': FILE, 'png': FILE, 'html': FILE,
    'calibrate': FILE, 'laboratory': FILE, 'machine': FILE, 'check': RECORDS, 'output': FILE}
# Those that may have a scheme, such as gs://, by which TensorFlow's own file layer reads and writes.
REMOTE = frozenset({'train_dir', 'eval_dir', 'report_dir', 'export_dir', 'checkpoint_dir', 'data_dir',
                    'pretrained_model_checkpoint_path'})
MADE_UP = 'synthetic:'  # --data_dir=synthetic:1000 is no folder, but images of 1000 classes that are made up.
STATE_FILE = 'checkpoint'  # TensorFlow's own name for the file that says which checkpoint is the newest.

_SCHEME = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*)://')
_ONE_SLASH = re.compile(r'([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)')
_PATTERN = re.compile(r'[*?\[\]{}\\]')
_PART = re.compile(r'\.(?:index|meta|data-\d{5}-of-\d{5})$')


def settle(name: str, path: str, kind: str = FOLDER, remote: bool = False) -> str:
    """Returns `path` as the programs use it: `~` expanded, no slash at its end, a checkpoint by its prefix,
    file:///run as /run.

    name: what the message calls it, such as '--train_dir'. '' stays ''. remote: whether it may have a scheme, such as
    gs://; whether TensorFlow knows it, remote.check_scheme says. Raises FlagError for one where none may be, for a name
    that TensorFlow would take as a pattern or cannot write down, and for a file where a folder is meant.
    """
    if not path:
        return ''
    said = f'{name}={path}'
    if not path.strip():
        raise FlagError(f'{name} is blank: name a path, or leave it out')
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise FlagError(f'{name}={path!r} holds a control character: name another path')
    if scheme_of(path) == 'file':
        path = _of_this_machine(said, path)
    elif scheme := scheme_of(path):
        return _settle_remote(name, path, scheme, kind, remote)
    elif (found := _ONE_SLASH.match(path)) and not os.path.lexists(found[1]):
        raise FlagError(f'{said}: write {found[1]}// for a file system of that name, or ./{path} for a folder')
    path = os.path.expanduser(path)
    if path.startswith('~'):
        raise FlagError(f'{said}: there is no such user; write ./{path} for a folder of that name')
    path = path.rstrip('/') or '/'
    if kind == CHECKPOINT:
        path = checkpoint_prefix(path)
    if kind in (FOLDER, CHECKPOINT):
        _refuse_patterns(name, said, path, os.path.abspath(path))
    if kind in (FOLDER, RECORDS):
        _refuse_files(said, path)
    if kind == FILE and os.path.isdir(path):
        raise FlagError(f'{said} is a folder: name a file')
    return path


def scheme_of(path: str) -> str:
    """Such as 'gs' of gs://bucket/run, in small letters; '' of a path on this machine."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else ''


def _of_this_machine(said: str, path: str) -> str:
    """file:///run is /run: with all that only a disk can do, such as locks."""
    host, slash, rest = _SCHEME.sub('', path, count=1).partition('/')
    if host not in ('', 'localhost') or not slash:
        raise FlagError(f'{said}: write file:/// and the path from the root, or the path alone')
    return f'/{rest}'


def _settle_remote(name: str, path: str, scheme: str, kind: str, remote: bool) -> str:
    said, rest = f'{name}={path}', _SCHEME.sub('', path, count=1).strip('/')
    if not remote:
        raise FlagError(f'{said}: {scheme}:// is not read or written here: name a folder or file of this machine, '
                        'such as one where it is mounted')
    if not rest:
        raise FlagError(f'{said}: name a folder in it, such as {scheme}://bucket/run')
    path = f'{scheme}://{rest}'
    if kind == CHECKPOINT:
        path = checkpoint_prefix(path)
    if kind in (FOLDER, CHECKPOINT):
        _refuse_patterns(name, said, path, path)
    return path


def made_up_classes(data_dir: str) -> int:
    """The number of classes of a --data_dir such as synthetic:1000; 0 for a folder. FlagError for no such number."""
    if not data_dir.startswith(MADE_UP):
        return 0
    number = data_dir.removeprefix(MADE_UP)
    if not re.fullmatch(r'[1-9][0-9]{0,5}', number):
        raise FlagError(f'--data_dir={data_dir}: write {MADE_UP}1000 for made-up images of 1000 classes (1 to 999999), '
                        f'or ./{data_dir} for a folder of that name')
    return int(number)


def checkpoint_prefix(path: str) -> str:
    """The path prefix of a checkpoint that is named by any of its files; the folder, if by TensorFlow's state file.

    Any other path is returned as it is.
    """
    if not scheme_of(path) and (os.path.isdir(path) or os.path.exists(path + '.index')):
        return path
    if os.path.basename(path) == STATE_FILE:
        return os.path.dirname(path) or '.'
    return _PART.sub('', path)


def _refuse_patterns(name: str, said: str, path: str, whole: str) -> None:
    # TensorFlow is given the path as it is here, but makes absolute ones of it in places.
    if found := _PATTERN.search(whole):
        where = '' if found[0] in path else f' (as {whole})'
        raise FlagError(f'{said}{where} holds {found[0]}, by which TensorFlow would take it as a pattern and might use '
                        'or delete files of other folders: name a path without any of * ? [ ] { } \\')
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise FlagError(f'{name}={path!r} is not UTF-8, which TensorFlow needs: name another path') from None


def _refuse_files(said: str, path: str) -> None:
    """A folder that is a file, or lies in one. A missing one is for those to say who read it."""
    above = path
    while above and not os.path.lexists(above):
        above = os.path.dirname(above)
    if above and os.path.exists(above) and not os.path.isdir(above):
        raise FlagError(f'{said}: {above} is a file, where a folder is meant')
    if above and os.path.islink(above) and not os.path.exists(above):
        raise FlagError(f'{said}: {above} is a link to {os.readlink(above)}, which is not there')
