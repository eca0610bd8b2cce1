"""Images without a file: the same random batch, whoever reads it."""

import numpy as np
import tensorflow as tf

from inception_mg.training.towers import DatasetFor


def random_images(size: int, num_outputs: int) -> DatasetFor:
    """Reader i of n gets the i-th part of the same random images, with labels from 1 to num_outputs - 1, for ever."""
    def make(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
        random = np.random.RandomState(11)
        images = random.uniform(-1, 1, (batch_size * readers, size, size, 3)).astype(np.float32)
        labels = random.randint(1, num_outputs, batch_size * readers).astype(np.int32)
        part = slice(first * batch_size, (first + 1) * batch_size)
        return tf.data.Dataset.from_tensors((images[part], labels[part])).repeat()
    return make
