"""The flower_photos set, as it is downloaded, to shards of records: the set of the 2016 README's example.

    python scripts/build_flowers_data.py --source=flower_photos.tgz --output_directory=records

--source may also be the unpacked folder flower_photos, or any folder, .tar or .tgz of a folder per class. A share of
the images, chosen by a hash of each name, becomes the validation set. LICENSE.txt and the like are left out.

Exit code: as of scripts/build_image_data.py.
"""

import common
from inception_mg import config
from inception_mg.errors import FlagError


def main() -> int:
    import build_image_data
    if not common.flags.FLAGS.source:
        raise FlagError('--source is empty: name the folder flower_photos or flower_photos.tgz')
    return build_image_data.run(common.from_flags(config.BuildConfig, train_directory=common.flags.FLAGS.source))


if __name__ == '__main__':
    common.flags.DEFINE_string('source', '', 'The folder flower_photos, or flower_photos.tgz.')
    common.define_flags(config.BuildConfig, only=(
        'output_directory', 'validation_split', 'train_shards', 'validation_shards', 'num_threads', 'on_bad_image',
        'jpeg_quality'), validation_split=0.15)
    common.run(main)
