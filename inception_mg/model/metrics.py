"""precision@1 and recall@k, as sums that add up over batches."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

RECALL_AT = 5


class Hits(NamedTuple):
    """Of one batch, int32 scalars: images, correct at the first guess, correct within k guesses."""

    images: tf.Tensor
    first: tf.Tensor
    within_k: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Scores:
    """The totals of an evaluation, as numbers."""

    images: int
    first: int
    within_k: int
    k: int

    @property
    def precision_at_1(self) -> float:
        """Share of the images whose most likely class is right; nan without images."""
        return self.first / self.images if self.images else float('nan')

    @property
    def recall_at_k(self) -> float:
        """Share of the images whose class is among the k most likely ones; nan without images."""
        return self.within_k / self.images if self.images else float('nan')


def recall_k(num_classes: int) -> int:
    """5 as in inception_eval.py, or fewer where 5 guesses could not miss."""
    return min(RECALL_AT, max(1, num_classes - 1))


def build_guesses(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The guessed class of each image, int32 [batch], in agreement with build_hits.

    Where several logits are the greatest the label counts, if it is among them; without finite logits the
    guess is 0, the background.
    """
    hit = tf.math.in_top_k(labels, logits, 1)
    guess = tf.where(hit, labels, tf.argmax(logits, axis=1, output_type=tf.int32))
    return tf.where(tf.reduce_all(tf.math.is_finite(logits), axis=1), guess, tf.zeros_like(guess))


def build_hits(logits: tf.Tensor, labels: tf.Tensor, k: int) -> Hits:
    """Counts the images of a batch. logits: float32 [batch, outputs]; labels: int32 [batch].

    A logit that is not finite counts as a miss (tf.math.in_top_k).
    """
    def count(guesses: int) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(tf.math.in_top_k(labels, logits, guesses), tf.int32))

    return Hits(tf.size(labels), count(1), count(k))
