"""model.json: what there is to know of a model beside its weights. Standard library only.

Training writes it into its train_dir; evaluation, export and classification read it, so that nobody has to
repeat the flags of the training. A folder without it (of an older training, say) works with the flags.
"""

import dataclasses
import json
import os
from collections.abc import Collection, Sequence

from inception_mg.config import DataConfig, ModelConfig
from inception_mg.data.dataset_info import BACKGROUND, read_dataset_info
from inception_mg.errors import FlagError, UserError
from inception_mg.files import is_folder, names_in, read_text, whole, write_text
from inception_mg.paths import made_up_classes
from inception_mg.version import VERSION

CARD_FILE = 'model.json'
FORMAT = 1  # Counts up when an older reader would misunderstand the file.
SETTINGS = ('model', 'width', 'image_size')  # Those that must be as in the training.


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What a model was made for.

    model: the network. classes[k - 1] is the name of output k; output 0 is the background. width, image_size (pixels)
    and compute_dtype are the settings of its training, data_dir the folder of records that it learned from.
    """

    width: float
    image_size: int
    classes: tuple[str, ...]
    compute_dtype: str
    data_dir: str
    model: str = 'inception_v3'

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of every output, beginning with the background."""
        return (BACKGROUND, *self.classes)


def make_card(data: DataConfig, model: ModelConfig, classes: Sequence[str]) -> ModelCard:
    """The card of a model with these settings and classes."""
    source = data.data_dir if made_up_classes(data.data_dir) else whole(data.data_dir)
    return ModelCard(model.width, data.image_size, tuple(classes), model.compute_dtype, source, model.model)


def write_card(directory: str, card: ModelCard) -> None:
    """Writes directory/model.json; readers see the old one or the new one."""
    write_text(os.path.join(directory, CARD_FILE), card_text(card))


def card_text(card: ModelCard) -> str:
    """What model.json holds: the card, and which version of this project wrote it."""
    fields = {'format': FORMAT, 'version': VERSION, 'num_classes': len(card.classes), **dataclasses.asdict(card)}
    return json.dumps(fields, indent=1, ensure_ascii=False) + '\n'


def folder_of(checkpoint: str) -> str:
    """The folder of a checkpoint that may be named by its folder or by its path prefix."""
    return checkpoint if is_folder(checkpoint) else os.path.dirname(checkpoint) or '.'


def read_card(directory: str) -> ModelCard | None:
    """Reads directory/model.json; None if there is none, UserError if it cannot be understood."""
    path = os.path.join(directory, CARD_FILE)
    try:
        fields = json.loads(read_text(path))
        if fields['format'] != FORMAT:
            raise UserError(f'{path} has format {fields["format"]}, this version reads {FORMAT}: use a version as new '
                            'as the one that trained the model')
        if not isinstance(fields['classes'], list) or not all(isinstance(name, str) for name in fields['classes']):
            raise TypeError('classes must be a list of names')
        return ModelCard(float(fields['width']), int(fields['image_size']), tuple(fields['classes']),
                         str(fields['compute_dtype']), str(fields['data_dir']),
                         str(fields.get('model', ModelCard.model)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f'{path} is damaged ({type(error).__name__}: {error}): move it away and give --width and '
                        '--image_size') from None


def settle(card: ModelCard | None, directory: str, data: DataConfig, model: ModelConfig,
           chosen: Collection[str] = SETTINGS) -> tuple[DataConfig, ModelConfig]:
    """Returns the settings as the card has them; without a card, unchanged.

    chosen: the settings that the user gave. FlagError naming both values where one contradicts the card.
    """
    if card is None:
        return data, model
    for name, given in (('model', model.model), ('width', model.width), ('image_size', data.image_size)):
        meant = getattr(card, name)
        if name in chosen and given != meant:
            raise FlagError(f'--{name}={_text(given)}, but the model in {directory} has {_text(meant)} ({CARD_FILE}): '
                            f'leave out --{name}')
    return (dataclasses.replace(data, image_size=card.image_size, data_dir=data.data_dir or card.data_dir),
            dataclasses.replace(model, model=card.model, width=card.width))


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f'{value:g}'


def settle_for_training(train_dir: str, data: DataConfig, model: ModelConfig, chosen: Collection[str] = SETTINGS
                        ) -> tuple[DataConfig, ModelConfig]:
    """Returns the settings of a training in train_dir: those of its model.json where it resumes, else unchanged.

    chosen: the settings that the user gave. FlagError where one contradicts the card, UserError where the data set has
    other classes than the card, or another order of them. Nothing is written. A folder without a checkpoint, and ''
    (a worker that was not told of it), starts new.
    """
    if not train_dir or not has_checkpoint(train_dir) or (card := read_card(train_dir)) is None:
        return data, model
    data, model = settle(card, train_dir, data, model, chosen)
    classes = read_dataset_info(data.data_dir).classes
    check_classes(card, train_dir, classes, data.data_dir, 'or train in another --train_dir; with --fine_tune '
                  f'--pretrained_model_checkpoint_path={train_dir} that begins at the weights of this one')
    return data, model


def has_checkpoint(directory: str) -> bool:
    """Whether a folder has files of a checkpoint, whole or not; tells without TensorFlow."""
    try:
        return any(name.endswith('.index') or '.data-' in name for name in names_in(directory))
    except OSError:
        return False


def check_classes(card: ModelCard | None, directory: str, classes: Sequence[str], data_dir: str,
                  otherwise: str = '') -> None:
    """Raises UserError where a data set has other classes, or another order of them, than the model.

    otherwise: what else one could do, for the end of the message.
    """
    if card is None or tuple(classes) == card.classes:
        return
    here, there = f'the data set in {data_dir}', f'the model in {directory}'
    if len(classes) != len(card.classes):
        difference = f'has {len(classes)} classes, {there} has {len(card.classes)}'
    else:
        label = next(k for k, name in enumerate(classes) if name != card.classes[k])
        difference = f'calls class {label + 1} {classes[label]!r}, {there} {card.classes[label]!r}'
    raise UserError(f'{here} {difference}: give the --data_dir of the same classes in the same order'
                    + (f', {otherwise}' if otherwise else ''))
