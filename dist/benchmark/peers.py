"""What others offer for the same work, as contenders: one process of one of them.

keras: keras.applications.InceptionV3 in a compiled tf.function with RMSProp, in Keras's policy for the compute dtype
(keras_float32: in float32 whatever the model's). mirrored, multiworker, parameter_server: the same under that
tf.distribute strategy. That network has no auxiliary head and no weight decay, and nothing keeps averages of its
weights, so it has a little less to do than ours. keras_inference: its predict. input_2016: the distorted images of
2016 in its order of work.

Keras is imported here, and by serving/keras_model.py; TF_USE_LEGACY_KERAS=0 has to be set before TensorFlow is.
"""

import json
import os

import tensorflow as tf

from dist.benchmark.contenders import NUM_OUTPUTS, from_dataset, synthetic_batch
from dist.benchmark.race import Contender
from dist.launch.local import free_ports
from inception_mg.config import ClusterConfig, DataConfig, ModelConfig
from inception_mg.data import distortions, example
from inception_mg.errors import FlagError
from inception_mg.training.image_task import open_training_data

POLICIES = {'float32': 'float32', 'bfloat16': 'mixed_bfloat16', 'float16': 'mixed_float16'}


def build(name: str, data: DataConfig, model: ModelConfig, cluster: ClusterConfig) -> Contender:
    """This process's part of the contender; FlagError for a name that there is not."""
    dtype = 'float32' if name == 'keras_float32' else model.compute_dtype
    makers = {'keras': lambda: keras_alone(data, dtype),
              'keras_float32': lambda: keras_alone(data, dtype),
              'keras_inference': lambda: keras_inference(data, dtype),
              'mirrored': lambda: mirrored(data, dtype),
              'multiworker': lambda: multiworker(data, dtype, cluster),
              'parameter_server': lambda: serving(cluster) if cluster.job_name else
              parameter_server(data, dtype, cluster),
              'input_2016': lambda: input_2016(data)}
    if name not in makers:
        raise FlagError(f'--contender={name}: there is none')
    return makers[name]()


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
        return synthetic_batch(DataConfig(image_size=self._size), self._batch)

    def step(self, images, labels):
        """One update; to be compiled. Returns the loss."""
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            targets = tf.one_hot(labels, NUM_OUTPUTS, 0.9 + 0.1 / NUM_OUTPUTS, 0.1 / NUM_OUTPUTS)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits)) / self._replicas
            scaled = self.optimizer.scale_loss(loss) if hasattr(self.optimizer, 'scale_loss') else loss
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss


def keras_alone(data: DataConfig, dtype: str) -> Contender:
    """One device."""
    trainer = Trainer(data.image_size, data.batch_size, dtype)
    batch, step = trainer.batch(), tf.function(trainer.step)

    def run(count: int) -> None:
        for _ in range(count):
            loss = step(*batch)
        if count:
            loss.numpy()

    return Contender(run, info(data.batch_size))


def keras_inference(data: DataConfig, dtype: str) -> Contender:
    """Keras's predict on one device, over a data set of as many batches as it is asked for."""
    trainer = Trainer(data.image_size, data.batch_size, dtype)
    batches = tf.data.Dataset.from_tensors(trainer.batch()[0]).cache().repeat()

    def run(count: int) -> None:
        if count:
            trainer.model.predict(batches.take(count), verbose=0)

    return Contender(run, info(data.batch_size))


def mirrored(data: DataConfig, dtype: str) -> Contender:
    """A copy on each of two devices of this machine; the batch is split over them."""
    if tf.config.list_physical_devices('GPU'):
        devices = ['GPU:0', 'GPU:1']
    else:
        devices = ['CPU:0', 'CPU:1']
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],
                                                   [tf.config.LogicalDeviceConfiguration() for _ in devices])
    run = under(tf.distribute.MirroredStrategy(devices), data.image_size, data.batch_size // len(devices), dtype)
    return Contender(run, info(data.batch_size))


def multiworker(data: DataConfig, dtype: str, cluster: ClusterConfig) -> Contender:
    """One of two processes that keep step by all-reduce; each has a batch of its own."""
    os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': cluster.worker_hosts.split(',')},
                                          'task': {'type': 'worker', 'index': cluster.task_id}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return Contender(under(strategy, data.image_size, data.batch_size, dtype), info(data.batch_size))


def under(strategy, image_size: int, batch_size: int, dtype: str):
    """run(n) of a synchronous strategy; batch_size: images of each replica."""
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


def parameter_server(data: DataConfig, dtype: str, cluster: ClusterConfig) -> Contender:
    """The coordinator of a ps and workers that update asynchronously; each has a batch of its own."""
    strategy = tf.distribute.ParameterServerStrategy(resolver(cluster, 'chief', 0))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        trainer = Trainer(data.image_size, data.batch_size, dtype)
    workers = len(cluster.worker_hosts.split(','))

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


def serving(cluster: ClusterConfig) -> Contender:
    """A ps or a worker of ParameterServerStrategy, which does what the coordinator says."""
    own = resolver(cluster, cluster.job_name, cluster.task_id)
    tf.distribute.Server(own.cluster_spec(), own.task_type, own.task_id, protocol='grpc')
    return Contender(lambda count: None, info(0))


def resolver(cluster: ClusterConfig, job: str, task: int):
    """Who is who under ParameterServerStrategy."""
    hosts = {'ps': cluster.ps_hosts.split(','), 'worker': cluster.worker_hosts.split(',')}
    if job == 'chief':
        hosts['chief'] = [f'127.0.0.1:{free_ports(1)[0]}']
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(hosts), task_type=job,
                                                                task_id=task, rpc_layer='grpc')


def input_2016(data: DataConfig) -> Contender:
    """Decodes the whole image, then crops it: the distortions of 2016 in a straightforward tf.data pipeline."""
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
