"""Records to measure the input with where the user names none: made-up photographs of the usual size."""

import pathlib

import numpy as np
from PIL import Image

from inception_mg.config import BuildConfig
from inception_mg.data.dataset_builder import build_dataset

IMAGES, CLASSES, WIDTH, HEIGHT = 96, 4, 500, 375  # 500 x 375 is the commonest size of an ImageNet photograph.


def make_records(folder: pathlib.Path) -> str:
    """Writes images and records of them below `folder`, and returns the path of the records."""
    chance = np.random.RandomState(0)
    for number in range(IMAGES):
        path = folder / 'images' / f'class_{number % CLASSES}' / f'{number}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        made_up_photograph(chance).save(path, quality=92)
    records = folder / 'records'
    records.mkdir()
    build_dataset(BuildConfig(train_directory=str(folder / 'images'), output_directory=str(records), train_shards=4,
                              num_threads=1))
    return str(records)


def made_up_photograph(chance: np.random.RandomState) -> Image.Image:
    """Noise whose contrast is proportional to its wavelength, as in photographs: then a JPEG takes as many bytes."""
    total = np.zeros((HEIGHT, WIDTH, 3))
    for octave in range(1, 9):
        shape = (max(2, HEIGHT * 2**octave // 512), max(2, WIDTH * 2**octave // 512), 3)
        noise = (chance.rand(*shape) * 255).astype(np.uint8)
        layer = np.asarray(Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), float)
        total += (layer - 128) / 2**(octave * 0.8)
    return Image.fromarray(np.clip(total * 1.4 + 128, 0, 255).astype(np.uint8))
