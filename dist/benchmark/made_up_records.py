"""Records to measure the input with where the user names none: made-up photographs of the usual size."""

import pathlib

import numpy as np
from PIL import Image

from inception_mg.config import BuildConfig
from inception_mg.data.dataset_builder import build_dataset

IMAGES, CLASSES, WIDTH, HEIGHT = 96, 4, 500, 375  # 500 x 375 is the commonest size of an ImageNet photograph.
_OCTAVES = 9


def make_records(folder: pathlib.Path) -> str:
    """Writes images and records of them below `folder`, and returns the path of the records."""
    chance = np.random.RandomState(0)
    scene = made_up_scene(chance)
    for number in range(IMAGES):
        path = folder / 'images' / f'class_{number % CLASSES}' / f'{number}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        left, top = chance.randint(scene.width - WIDTH), chance.randint(scene.height - HEIGHT)
        scene.crop((left, top, left + WIDTH, top + HEIGHT)).save(path, quality=92)
    records = folder / 'records'
    records.mkdir()
    build_dataset(BuildConfig(train_directory=str(folder / 'images'), output_directory=str(records), train_shards=4,
                              num_threads=1))
    return str(records)


def made_up_scene(chance: np.random.RandomState) -> Image.Image:
    """Coarse to fine noise, four photographs large, mixed so that a JPEG of a photograph's size has about 75 KB."""
    width, height = 2 * WIDTH, 2 * HEIGHT
    total = np.zeros((height, width, 3), np.float32)
    for octave in range(1, _OCTAVES + 1):
        shape = (max(2, height * 2**octave // 2**_OCTAVES), max(2, width * 2**octave // 2**_OCTAVES), 3)
        noise = (chance.rand(*shape) * 255).astype(np.uint8)
        layer = np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC), np.float32)
        total += (layer - 128) * 2**(0.3 * (1 - octave))
    return Image.fromarray(np.clip(total * 0.45 + 128, 0, 255).astype(np.uint8))
