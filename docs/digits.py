"""Handwritten digits, 8 x 8 pixels (those that come with scikit-learn), on whatever the command line says."""

import inception_mg as mg  # First: it quiets TensorFlow.

# isort: split
import sklearn.datasets
import tensorflow as tf

pixels, labels = sklearn.datasets.load_digits(return_X_y=True)  # 1,797 images of 64 values from 0 to 16.
images, labels = (pixels / 8 - 1).reshape(-1, 8, 8, 1).astype('float32'), labels.astype('int32')


def network(images, layers):
    net = layers.conv(images, 16, [3, 3], scope='conv1')
    net = layers.conv(net, 32, [3, 3], stride=2, scope='conv2')
    net = layers.conv(net, 64, [3, 3], stride=2, scope='conv3')
    return layers.fully_connected(tf.reshape(net, [-1, 2 * 2 * 64]), 10, scope='logits')


def examples(part, parts, batch_size):
    mine = tf.data.Dataset.from_tensor_slices((images[300:], labels[300:])).shard(parts, part)
    return mine.shuffle(1500).repeat().batch(batch_size, drop_remainder=True)


def validation(batch_size):
    return tf.data.Dataset.from_tensor_slices((images[:300], labels[:300])).batch(batch_size)


if __name__ == '__main__':
    mg.fit(mg.classifier(
        network, examples, num_examples=1497, outputs=range(10), validation=validation, batch_size=64,
        settings=mg.OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.95)), steps=300)
