"""What an exported model's arithmetic costs: precision@1 on validation images, beside that of float32."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from inception_mg.data.dataset_info import read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.data.progress import progress
from inception_mg.run_dir.model_card import ModelCard

v1 = tf.compat.v1
Predict = Callable[[np.ndarray], np.ndarray]  # float32 [n, size, size, 3] in [-1, 1] -> logits [n, outputs].
_BATCH = 16


def images_of(data_dir: str, subset: str, card: ModelCard, count: int, batch_size: int = _BATCH
              ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first `count` images of a subset as evaluation sees them, float32 [n, size, size, 3], and labels [n].

    Raises UserError without shards.
    """
    with tf.Graph().as_default() as graph:
        dataset = evaluation_dataset(shard_paths(data_dir, subset), image_size=card.image_size, batch_size=batch_size,
                                     num_preprocess_threads=2, num_examples=count, num_classes=len(card.classes))
        iterator = v1.data.make_initializable_iterator(dataset)
        images, labels, _ = iterator.get_next()
    # No default session: whoever takes the images has a graph of its own around.
    session = v1.Session(graph=graph, config=v1.ConfigProto(device_count={'GPU': 0}))
    try:
        session.run(iterator.initializer)
        while True:
            yield session.run((images, labels))
    except tf.errors.OutOfRangeError:
        return
    finally:
        session.close()


def compare(predictors: Mapping[str, Predict], data_dir: str, card: ModelCard, count: int) -> str:
    """One line: precision@1 of each on the same validation images, at most `count` (0: all)."""
    there = read_dataset_info(data_dir).counts.get('validation', 0)
    if not there:
        return f'precision  not compared: {data_dir} has no validation images'
    total = min(there, count) if count else there
    hits, seen = dict.fromkeys(predictors, 0), 0
    batches = images_of(data_dir, 'validation', card, total)
    for images_v, labels_v in progress(batches, -(-total // _BATCH), 'compare', 'batch'):
        seen += len(labels_v)
        for name, predict in predictors.items():
            hits[name] += int((predict(images_v).argmax(axis=1) == labels_v).sum())
    shares = ', '.join(f'{name} {found / seen:.4f} ({found})' for name, found in hits.items())
    return f'precision  @1 on {seen} validation images: {shares}'
