"""A tiny data set that TensorFlow Datasets writes, if it is installed; tests/data/tfds_shapes/ is what it wrote.

    python tests/tfds_shapes.py FOLDER
"""

import sys

import numpy as np

LEVELS = {'dark': 30, 'light': 220, 'grey': 128}  # Of their pixels, in the order of their labels, from 0.
SHARDS = 2


def write(folder: str) -> str:
    """Writes 12 x 12 images of one channel, as PNG: 12 to train on, 6 to test; returns the folder of the records."""
    import tensorflow_datasets as tfds

    class Shapes(tfds.core.GeneratorBasedBuilder):
        """Of one level each."""

        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            features = tfds.features
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict({
                'image': features.Image(shape=(12, 12, 1)), 'file_name': features.Text(),
                'label': features.ClassLabel(names=list(LEVELS))}), supervised_keys=('image', 'label'))

        def _split_generators(self, dl_manager):
            return {'train': self._generate_examples(12), 'test': self._generate_examples(6)}

        def _generate_examples(self, count):
            for number in range(count):
                label = number % len(LEVELS)
                level = list(LEVELS.values())[label]
                yield number, {'image': np.full((12, 12, 1), level, np.uint8), 'label': label,
                               'file_name': f'{list(LEVELS)[label]}_{number}.png'}

    builder = Shapes(data_dir=folder, file_format='tfrecord')
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=SHARDS))
    return builder.data_dir


if __name__ == '__main__':
    print(write(sys.argv[1]))
