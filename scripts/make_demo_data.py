"""Makes a small data set of real photographs: crops of nine that come with scikit-image.

    python scripts/make_demo_data.py --output_directory=DIR

Writes DIR/train/CLASS/*.jpg and DIR/validation/CLASS/*.jpg. Each photograph is cut into 4 x 4 tiles; one
of each row gives validation images, the others training images, so that no pixel is in both.
"""

import pathlib
import random

import common
from inception_mg.errors import FlagError, UserError

# Class -> file in skimage/data.
PHOTOGRAPHS = {
    'brick': 'brick.png', 'cat': 'chelsea.png', 'coffee': 'coffee.png', 'coins': 'coins.png',
    'grass': 'grass.png', 'moon': 'moon.png', 'page': 'page.png', 'retina': 'retina.jpg',
    'stars': 'hubble_deep_field.jpg'}
TILES, SIDE = 4, 128  # Tiles per side of a photograph, pixels per side of a tile.
CROPS = {'train': 12, 'validation': 6}  # Crops of each tile.
SMALLEST = 0.6  # Side of the smallest crop, as a share of the tile's.


def tile_subset(row: int, column: int) -> str:
    """Every fourth tile is for validation, in another column in the next row."""
    return 'validation' if column % 4 == (2 * row + 1) % 4 else 'train'


def crops_of(photograph, seed: str):
    """Yields (subset, name, image) for all tiles of a Pillow image."""
    chance = random.Random(seed)
    photograph = photograph.convert('RGB').resize((TILES * SIDE, TILES * SIDE))
    for row in range(TILES):
        for column in range(TILES):
            subset = tile_subset(row, column)
            for number in range(CROPS[subset]):
                side = round(SIDE * chance.uniform(SMALLEST, 1))
                left = column * SIDE + chance.randrange(SIDE - side + 1)
                top = row * SIDE + chance.randrange(SIDE - side + 1)
                name = f'tile_{row}_{column}_{number}.jpg'
                yield subset, name, photograph.crop((left, top, left + side, top + side))


def main() -> int:
    output = pathlib.Path(common.flags.FLAGS.output_directory)
    if not common.flags.FLAGS.output_directory:
        raise FlagError('--output_directory is empty: name the folder for the images')
    if output.exists() and any(output.iterdir()):
        raise UserError(f'{output} is not empty: name another --output_directory')
    try:
        import skimage
        from PIL import Image
    except ImportError as error:
        raise UserError(f'{error.name} is not installed: pip install ".[demo]"') from None
    folder = pathlib.Path(skimage.__file__).parent / 'data'
    counts = dict.fromkeys(CROPS, 0)
    for name, file in PHOTOGRAPHS.items():
        if not (folder / file).exists():
            raise UserError(f'{folder / file} is missing in this scikit-image: install 0.22 to 0.26')
        with Image.open(folder / file) as photograph:
            for subset, crop_name, crop in crops_of(photograph, name):
                path = output / subset / name / crop_name
                path.parent.mkdir(parents=True, exist_ok=True)
                crop.save(path, quality=92)
                counts[subset] += 1
    print(f'{output}: {len(PHOTOGRAPHS)} classes, ' + ', '.join(f'{n} {subset} images' for subset, n in counts.items()))
    return 0


if __name__ == '__main__':
    common.flags.DEFINE_string('output_directory', '', 'A new or empty folder for the images.')
    common.run(main)
