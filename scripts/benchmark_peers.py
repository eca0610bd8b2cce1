"""What others offer for the same work, as contenders of scripts/benchmark.py: one process of one of them.

    python scripts/benchmark_peers.py --contender=keras --batch_size=8

keras: keras.applications.InceptionV3 in a compiled tf.function with RMSProp, in Keras's policy for the compute dtype
(keras_float32: in float32 whatever the flag says). mirrored, multiworker, parameter_server: the same under that
tf.distribute strategy. That network has no auxiliary head and no weight decay, and nothing keeps averages of its
weights, so it has a little less to do than ours. input_2016: the distorted images of 2016 in its order of work.

The only place of the project where Keras is imported. The protocol is that of scripts/benchmark_contender.py.
"""

import json
import os
import sys

os.environ['TF_USE_LEGACY_KERAS'] = '0'  # Here Keras is wanted, and this one.

import common  # First: it quiets TensorFlow's start.
from dist.benchmark import race
from dist.benchmark.race import Contender
from dist.launch.local import free_ports
from dist.server import hide_gpus
from inception_mg import config
from inception_mg.errors import FlagError

NUM_OUTPUTS = 1001
POLICIES = {'float32': 'float32', 'bfloat16': 'mixed_bfloat16', 'float16': 'mixed_float16'}


class Trainer:
    """Keras's Inception v3, its optimizer and one training step; made in the scope of a strategy, if any."""

    def __init__(self, image_size: int, batch_size: int, dtype: str, replicas: int = 1):
        import keras
        keras.mixed_precision.set_global_policy(POLICIES[dtype])
        self._size, self._batch, self._replicas = image_size, batch_size, replicas
        self.model = keras.applications.InceptionV3(weights=None, input_shape=(image_size, image_size, 3),
                                                    classes=NUM_OUTPUTS, classifier_activation=None)
        self.optimizer = keras.optimizers.RMSprop(0.001, rho=0.9, momentum=0.9, epsilon=1.0)
        if dtype == 'float16':
            self.optimizer = keras.mixed_precision.LossScaleOptimizer(self.optimizer)
        self.optimizer.build(self.model.trainable_variables)

    def batch(self):
        """The same images and labels as every contender has, once."""
        from dist.benchmark.contenders import synthetic_batch
        return synthetic_batch(config.DataConfig(image_size=self._size), self._batch)

    def step(self, images, labels):
        """One update; to be compiled. Returns the loss."""
        import tensorflow as tf
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            targets = tf.one_hot(labels, NUM_OUTPUTS, 0.9 + 0.1 / NUM_OUTPUTS, 0.1 / NUM_OUTPUTS)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits)) / self._replicas
            scaled = self.optimizer.scale_loss(loss) if hasattr(self.optimizer, 'scale_loss') else loss
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss


def keras_alone(data: config.DataConfig, dtype: str) -> Contender:
    """One device."""
    import tensorflow as tf
    trainer = Trainer(data.image_size, data.batch_size, dtype)
    batch, step = trainer.batch(), tf.function(trainer.step)

    def run(count: int) -> None:
        for _ in range(count):
            loss = step(*batch)
        if count:
            loss.numpy()

    return Contender(run, info(data.batch_size))


def mirrored(data: config.DataConfig, dtype: str) -> Contender:
    """A copy on each of two devices of this machine; the batch is split over them."""
    import tensorflow as tf
    if tf.config.list_physical_devices('GPU'):
        devices = ['GPU:0', 'GPU:1']
    else:
        devices = ['CPU:0', 'CPU:1']
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],
                                                   [tf.config.LogicalDeviceConfiguration() for _ in devices])
    run = under(tf.distribute.MirroredStrategy(devices), data.image_size, data.batch_size // len(devices), dtype)
    return Contender(run, info(data.batch_size))


def multiworker(data: config.DataConfig, dtype: str) -> Contender:
    """One of two processes that keep step by all-reduce; each has a batch of its own."""
    import tensorflow as tf
    hosts = common.flags.FLAGS.worker_hosts.split(',')
    os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': hosts},
                                          'task': {'type': 'worker', 'index': common.flags.FLAGS.task_id}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return Contender(under(strategy, data.image_size, data.batch_size, dtype), info(data.batch_size))


def under(strategy, image_size: int, batch_size: int, dtype: str):
    """run(n) of a synchronous strategy; batch_size: images of each replica."""
    import tensorflow as tf
    with strategy.scope():
        trainer = Trainer(image_size, batch_size, dtype, strategy.num_replicas_in_sync)
    parts = [strategy.experimental_distribute_values_from_function(lambda context, part=part: part)
             for part in trainer.batch()]

    @tf.function
    def step():
        return strategy.run(trainer.step, args=parts)

    def run(count: int) -> None:
        for _ in range(count):
            loss = step()
        if count:
            strategy.experimental_local_results(loss)[0].numpy()

    return run


def parameter_server(data: config.DataConfig, dtype: str) -> Contender:
    """The coordinator of a ps and workers that update asynchronously; each has a batch of its own."""
    import tensorflow as tf
    strategy = tf.distribute.ParameterServerStrategy(resolver('chief', 0))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        trainer = Trainer(data.image_size, data.batch_size, dtype)
    workers = len(common.flags.FLAGS.worker_hosts.split(','))

    def batches():
        return tf.data.Dataset.from_tensors(trainer.batch()).repeat()

    inputs = iter(coordinator.create_per_worker_dataset(batches))

    @tf.function
    def step(iterator):
        return strategy.run(trainer.step, args=next(iterator))

    def run(count: int) -> None:
        for _ in range(count * workers):
            coordinator.schedule(step, args=(inputs,))
        coordinator.join()

    return Contender(run, info(data.batch_size * workers))


def serving() -> Contender:
    """A ps or a worker of ParameterServerStrategy, which does what the coordinator says."""
    import tensorflow as tf
    own = resolver(common.flags.FLAGS.job_name, common.flags.FLAGS.task_id)
    tf.distribute.Server(own.cluster_spec(), own.task_type, own.task_id, protocol='grpc')
    return Contender(lambda count: None, info(0))


def resolver(job: str, task: int):
    """Who is who under ParameterServerStrategy."""
    import tensorflow as tf
    hosts = {'ps': common.flags.FLAGS.ps_hosts.split(','), 'worker': common.flags.FLAGS.worker_hosts.split(',')}
    if job == 'chief':
        hosts['chief'] = [f'127.0.0.1:{free_ports(1)[0]}']
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(hosts), task_type=job,
                                                                task_id=task, rpc_layer='grpc')


def input_2016(data: config.DataConfig) -> Contender:
    """Decodes the whole image, then crops it: the distortions of 2016 in a straightforward tf.data pipeline."""
    import tensorflow as tf

    from dist.benchmark.contenders import from_dataset
    from inception_mg.data import distortions, example
    from inception_mg.training.train import open_training_data
    source = open_training_data(data)

    def resize(image, variant):
        ways = [lambda method=method: tf.compat.v1.image.resize_images(image, [data.image_size] * 2, method)
                for method in distortions.METHODS]
        return tf.ensure_shape(tf.switch_case(variant, ways), [data.image_size, data.image_size, 3])

    def colours(image, order: int):
        image = tf.image.random_brightness(image, 32 / 255)
        if order:
            image = tf.image.random_contrast(image, 0.5, 1.5)
        image = tf.image.random_hue(tf.image.random_saturation(image, 0.5, 1.5), 0.2)
        if not order:
            image = tf.image.random_contrast(image, 0.5, 1.5)
        return tf.clip_by_value(image, 0.0, 1.0)

    def distort(number, serialized):
        record = example.parse_example(serialized)
        image = tf.image.convert_image_dtype(tf.io.decode_jpeg(record.encoded, channels=3), tf.float32)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), record.bbox, min_object_covered=0.1, aspect_ratio_range=[0.75, 1.33],
            area_range=[0.05, 1.0], max_attempts=100, use_image_if_no_bounding_boxes=True)
        variant = tf.cast(number % distortions.NUM_VARIANTS, tf.int32)
        image = resize(tf.slice(image, begin, size), variant)
        image = tf.image.random_flip_left_right(image)
        image = tf.cond(variant % 2 > 0, lambda: colours(image, 1), lambda: colours(image, 0))
        return (image - 0.5) * 2, record.label

    def make():
        files = tf.data.Dataset.from_tensor_slices(source.paths).repeat()
        examples = files.interleave(tf.data.TFRecordDataset, cycle_length=data.num_readers)
        return (examples.shuffle(1024).enumerate().map(distort, num_parallel_calls=data.num_preprocess_threads)
                .batch(data.batch_size, drop_remainder=True).prefetch(4))

    return from_dataset(make, data.batch_size)


def info(images: int) -> dict:
    """What a contender says of itself."""
    return {'unit': 'images', 'amount': images}


def build() -> Contender:
    """Returns this process's part of the contender of the flags."""
    name, data = common.flags.FLAGS.contender, common.from_flags(config.DataConfig)
    if common.flags.FLAGS.job_name == 'ps':
        hide_gpus(os.environ)
    with common.quiet_import():
        import tensorflow  # noqa: F401
    if name == 'input_2016':
        return input_2016(data)
    if name == 'parameter_server' and common.flags.FLAGS.job_name:
        return serving()
    dtype = 'float32' if name == 'keras_float32' else common.from_flags(config.ModelConfig).compute_dtype
    peers = {'keras': keras_alone, 'keras_float32': keras_alone, 'mirrored': mirrored, 'multiworker': multiworker,
             'parameter_server': parameter_server}
    if name not in peers:
        raise FlagError(f'--contender={name}: there is none')
    return peers[name](data, dtype)


def main() -> int:
    answers = race.take_answers_apart()
    race.serve(build(), sys.stdin, answers)
    race.leave()


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.ClusterConfig)
    common.flags.DEFINE_string('contender', '', 'Which one.')
    common.run(main)
