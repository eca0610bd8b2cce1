"""Checks of settings that need only their values, so that a wrong flag is refused before TensorFlow is imported."""

import dataclasses
import math
import os

from inception_mg.config import (
    COMPUTE_DTYPES,
    EXPERIMENTS,
    EXPORT_FORMATS,
    FREEZE_POINTS,
    INPUT_RANGES,
    MINIMUM_IMAGE_SIZE,
    MODELS,
    ON_BAD_IMAGE,
    OPTIMIZERS,
    QUANTIZE,
    SCHEDULES,
    SOURCES,
    WAYS,
    WIRE_DTYPES,
    BenchmarkConfig,
    BuildConfig,
    ClassifyConfig,
    ClusterConfig,
    ConvertConfig,
    DataConfig,
    DeviceConfig,
    EvalConfig,
    ExperimentsConfig,
    ExportConfig,
    ImagenetConfig,
    InGraphConfig,
    LaunchConfig,
    ModelConfig,
    OldConfig,
    OptimizerConfig,
    PlanConfig,
    ReportConfig,
    RunConfig,
)
from inception_mg.errors import (
    EXIT_FAILED,
    EXIT_FLAGS,
    EXIT_RETRY,
    EXIT_SIGINT,
    EXIT_SIGKILL,
    EXIT_SIGTERM,
    FlagError,
)
from inception_mg.paths import made_up_classes

HIGHEST = 2 ** 31 - 1  # What TensorFlow's 32-bit integers hold.


def check_numbers(config) -> None:
    """Raises FlagError for a number in any field of a dataclass of config.py that is not finite, or beyond 32 bits."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float) and not (math.isfinite(value) and abs(value) < 3e38):
            raise FlagError(f'--{field.name}={value} is not a finite number')
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > HIGHEST:
            raise FlagError(f'--{field.name}={value} is beyond {"-" * (value < 0)}{HIGHEST}')


def check_build(build: BuildConfig) -> None:
    """Raises FlagError for a missing directory, a number or a quality out of its range."""
    if not build.output_directory:
        raise FlagError('--output_directory is empty: name the folder for the records')
    if build.describe:
        return
    if build.image_list and (build.train_directory or build.validation_directory):
        raise FlagError('--image_list and a folder of images are given: name one of them')
    if not build.image_list and not build.train_directory and not build.validation_directory:
        raise FlagError('--train_directory and --validation_directory are empty: name at least one of them')
    if not 0 <= build.validation_split < 1:
        raise FlagError(f'--validation_split={build.validation_split} is no share from 0 up to, but not, 1')
    if build.validation_split and (build.validation_directory or not (build.train_directory or build.image_list)):
        raise FlagError('--validation_split is a share of --train_directory or --image_list: leave '
                        '--validation_directory out')
    for name in ('train_shards', 'validation_shards', 'num_threads', 'jpeg_quality'):
        _at_least(name, getattr(build, name), 1)
    for name in ('train_shards', 'validation_shards'):
        _at_most(name, getattr(build, name), 99999)  # Five digits in a shard's name.
    _at_most('jpeg_quality', build.jpeg_quality, 100)
    _one_of('on_bad_image', build.on_bad_image, ON_BAD_IMAGE)


def check_imagenet(build: ImagenetConfig) -> None:
    """Raises FlagError for a missing directory or a number out of its range."""
    if not build.output_directory:
        raise FlagError('--output_directory is empty: name the folder for the records')
    if not build.source and not build.train_directory and not build.validation_directory:
        raise FlagError('--source is empty: name the folder with the tars or folders of ILSVRC2012')
    for name in ('train_shards', 'validation_shards', 'num_threads'):
        _at_least(name, getattr(build, name), 1)
    for name in ('train_shards', 'validation_shards'):
        _at_most(name, getattr(build, name), 99999)  # Five digits in a shard's name.
    _one_of('on_bad_image', build.on_bad_image, ON_BAD_IMAGE)


def check_data(data: DataConfig, model: str = 'inception_v3') -> None:
    """Raises FlagError for values that no data set can make right; model: the network that the images are for."""
    made_up_classes(data.data_dir)
    _one_of('model', model, MODELS)
    _at_least('batch_size', data.batch_size, 1)
    _at_least('image_size', data.image_size, MINIMUM_IMAGE_SIZE[model])
    for name in ('num_preprocess_threads', 'num_readers', 'input_queue_memory_factor'):
        _at_least(name, getattr(data, name), 1)


def check_model(model: ModelConfig) -> None:
    """Raises FlagError for a width, type, decay or share out of its range."""
    _one_of('model', model.model, MODELS)
    _one_of('compute_dtype', model.compute_dtype, COMPUTE_DTYPES)
    if not 0 < model.width <= 8:
        raise FlagError(f'--width={model.width:g} must be above 0 and at most 8')
    _one_of('freeze_below', model.freeze_below, ('', *FREEZE_POINTS[model.model]))
    for name in ('batch_norm_decay', 'label_smoothing'):
        _share(name, getattr(model, name), zero=True)
    if not 0 < model.dropout_keep_prob <= 1:
        raise FlagError(f'--dropout_keep_prob={model.dropout_keep_prob:g} must be in (0, 1]')


def check_run(run: RunConfig, optimizer: OptimizerConfig, writes: bool = True) -> None:
    """Raises FlagError for a missing directory (if this task writes), a step count or a rate out of its range."""
    if writes and not run.train_dir:
        raise FlagError('--train_dir is empty: name the folder for checkpoints and summaries')
    for name in ('max_steps', 'log_every_steps'):
        _at_least(name, getattr(run, name), 1)
    _at_least('trace_step', run.trace_step, -1)
    _at_least('eval_every_steps', run.eval_every_steps, 0)
    for name in ('save_interval_secs', 'save_summaries_secs', 'max_checkpoints_to_keep'):
        _at_least(name, getattr(run, name), 0)
    if run.fine_tune and not run.pretrained_model_checkpoint_path:
        raise FlagError('--fine_tune needs --pretrained_model_checkpoint_path')
    if not optimizer.initial_learning_rate >= 0:
        raise FlagError(f'--initial_learning_rate={optimizer.initial_learning_rate} is negative')
    if not optimizer.num_epochs_per_decay > 0:
        raise FlagError(f'--num_epochs_per_decay={optimizer.num_epochs_per_decay:g} must be above 0')
    _check_optimizer(optimizer)


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    _one_of('optimizer', optimizer.optimizer, OPTIMIZERS)
    _one_of('schedule', optimizer.schedule, SCHEDULES)
    for name in ('warmup_epochs', 'num_epochs', 'clip_norm'):
        _at_least(name, getattr(optimizer, name), 0)
    if optimizer.schedule == 'cosine' and not optimizer.num_epochs:
        raise FlagError('--schedule=cosine ends at --num_epochs: say how many')
    if not optimizer.adam_epsilon > 0:
        raise FlagError(f'--adam_epsilon={optimizer.adam_epsilon:g} must be above 0')
    for name in ('moving_average_decay', 'momentum', 'adam_beta1', 'adam_beta2'):
        _share(name, getattr(optimizer, name), zero=True)


def check_old(old: OldConfig) -> None:
    """Raises FlagError for what the 2016 programs took and these do not."""
    if old.subset != 'train':
        raise FlagError(f'--subset={old.subset}: training takes the train shards; scripts/evaluate.py evaluates others')
    if old.protocol != 'grpc':
        raise FlagError(f'--protocol={old.protocol}: the servers of this TensorFlow speak grpc')


def with_sync(cluster: ClusterConfig, sync_given: bool) -> ClusterConfig:
    """A number of gradients per update asks for synchronous updates, as in 2016, when all were."""
    asks = cluster.num_replicas_to_aggregate > 0 and not sync_given
    return dataclasses.replace(cluster, sync=True) if asks else cluster


def check_cluster(cluster: ClusterConfig) -> None:
    """Raises FlagError for a count of gradients or a waiting time that no cluster can make right."""
    count = cluster.num_replicas_to_aggregate
    if count < 1 and count != -1:
        raise FlagError(f'--num_replicas_to_aggregate={count} must be at least 1, or -1 for all workers')
    if count != -1 and not cluster.sync:
        raise FlagError(f'--num_replicas_to_aggregate={count} needs --sync')
    if cluster.prefetch_variables and cluster.sync:
        raise FlagError('--prefetch_variables is for asynchronous training: --sync averages gradients of the present '
                        'weights')
    _one_of('wire_dtype', cluster.wire_dtype, WIRE_DTYPES)
    numbers = cluster.gpus.split(',') if cluster.gpus else []
    if not all(number.strip().isdecimal() for number in numbers) or len(set(numbers)) != len(numbers):
        raise FlagError(f'--gpus={cluster.gpus} is no list of different numbers such as 0,1')
    for name in ('start_timeout', 'lost_timeout'):
        _at_least(name, getattr(cluster, name), 1)
    check_partition_mb(cluster.partition_mb)
    _at_least('slurm_ps', cluster.slurm_ps, -1)
    _at_least('slurm_first_port', cluster.slurm_first_port, 0)
    _at_most('slurm_first_port', cluster.slurm_first_port, 65535)
    check_retry_exit_code(cluster.retry_exit_code)


def check_partition_mb(size: float) -> None:
    """Raises FlagError for a size of slices that is none, or of which a network has tens of thousands."""
    if size < 0 or 0 < size < 0.01:
        raise FlagError(f'--partition_mb={size:g} must be 0, which cuts nothing, or at least 0.01')


def check_retry_exit_code(code: int) -> None:
    """Raises FlagError for an exit code that there is not, or that says something else already."""
    _at_least('retry_exit_code', code, 1)
    _at_most('retry_exit_code', code, 255)
    if code in (EXIT_FAILED, EXIT_FLAGS, EXIT_SIGINT, EXIT_SIGKILL, EXIT_SIGTERM):
        raise FlagError(f'--retry_exit_code={code} says something else already: take another, such as {EXIT_RETRY}')


def check_in_graph(options: InGraphConfig, devices: DeviceConfig, num_ps: int, num_workers: int) -> None:
    """Raises FlagError for a split or a cluster that is none."""
    if options.split_over_hosts and not devices.split_model:
        raise FlagError('--split_over_hosts needs --split_model=branches or --split_model=stages')
    if num_workers < 2 and (options.split_over_hosts or not num_ps):
        raise FlagError(f'--worker_hosts lists {num_workers} worker'
                        + (': --split_over_hosts needs at least 2' if options.split_over_hosts else
                           ' and --ps_hosts none: on one machine use train.py'))


def check_launch(launch: LaunchConfig) -> None:
    """Raises FlagError for a number of tasks or restarts out of its range, or flags that need or exclude others."""
    for name, minimum in (('num_ps', 0 if launch.in_graph else 1), ('num_workers', 1), ('max_restarts', 0)):
        _at_least(name, getattr(launch, name), minimum)
    for name in ('link', 'ps_link', 'ipv6', 'drill'):
        if getattr(launch, name) and not launch.machines:
            raise FlagError(f'--{name} needs --machines')
    if launch.machines and launch.private_network:
        raise FlagError('--machines and --private_network exclude each other: the machines have a network of their own')


def check_report(report: ReportConfig) -> None:
    """Raises FlagError for a missing way or a number out of its range."""
    if bool(report.way) == report.all:
        raise FlagError(f'give either --all or --way, one of {", ".join(WAYS)}')
    for name, minimum in (('devices', 0), ('num_ps', 0), ('num_workers', 1), ('images_per_tower', 1),
                          ('num_classes', 1)):
        _at_least(name, getattr(report, name), minimum)
    check_partition_mb(report.partition_mb)
    if report.devices == 1 and report.way == 'split_model':
        raise FlagError('--devices=1: a split model needs at least 2')
    if not report.network_gbits > 0:
        raise FlagError(f'--network_gbits={report.network_gbits:g} must be above 0')


def check_eval(config: EvalConfig) -> None:
    """Raises FlagError for a missing folder, a number out of range, or flags that exclude each other."""
    if not config.checkpoint_dir:
        raise FlagError('--checkpoint_dir is empty: name the folder with the checkpoints')
    for name in ('num_examples', 'stop_after_no_gain'):
        _at_least(name, getattr(config, name), 0)
    if not config.eval_interval_secs > 0:
        raise FlagError(f'--eval_interval_secs={config.eval_interval_secs:g} must be above 0')
    if not 0 <= config.stop_at_precision <= 1:
        raise FlagError(f'--stop_at_precision={config.stop_at_precision:g} must be between 0 and 1')
    for name in ('stop_after_no_gain', 'stop_at_precision'):
        if config.run_once and getattr(config, name):
            raise FlagError(f'--{name} needs an evaluator that goes on: leave out --run_once')


def check_within(run: RunConfig, evaluation: EvalConfig, data_dir: str) -> None:
    """Raises FlagError for an evaluation within a training that cannot be."""
    check_eval(dataclasses.replace(evaluation, checkpoint_dir=run.train_dir or '.'))
    if run.eval_every_steps and made_up_classes(data_dir):
        raise FlagError(f'--eval_every_steps={run.eval_every_steps}: of made-up images there is nothing to evaluate')
    for name in ('stop_after_no_gain', 'stop_at_precision'):
        if getattr(evaluation, name) and not run.eval_every_steps:
            raise FlagError(f'--{name} in a training needs --eval_every_steps')


def check_convert(config: ConvertConfig) -> None:
    """Raises FlagError for a missing path or an unknown source."""
    for name in ('input', 'output_directory'):
        if not getattr(config, name):
            raise FlagError(f'--{name} is empty')
    _one_of('source', config.source, ('auto', *SOURCES))


def check_export(config: ExportConfig) -> None:
    """Raises FlagError for a missing folder or an unknown format."""
    for name in ('checkpoint_dir', 'export_dir'):
        if not getattr(config, name):
            raise FlagError(f'--{name} is empty')
    _one_of('format', config.format, EXPORT_FORMATS)
    _one_of('compute_dtype', config.compute_dtype, COMPUTE_DTYPES)
    _one_of('quantize', config.quantize, QUANTIZE)
    _one_of('input_range', config.input_range, INPUT_RANGES)
    _at_least('num_examples', config.num_examples, 0)
    for name, formats in (('compute_dtype', ('saved_model', 'frozen_graph')), ('quantize', ('tflite',)),
                          ('input_range', ('tflite', 'onnx'))):
        if getattr(config, name) != getattr(ExportConfig, name) and config.format not in formats:
            raise FlagError(f'--{name}={getattr(config, name)} is for --format={" or ".join(formats)}, not '
                            f'{config.format}')


def check_classify(config: ClassifyConfig) -> None:
    """Raises FlagError for a number below 1."""
    for name in ('top_k', 'batch_size', 'num_threads'):
        _at_least(name, getattr(config, name), 1)


def check_benchmark(benchmark: BenchmarkConfig) -> None:
    """Raises FlagError for a number of rounds or a time out of its range, or files that cannot be written."""
    _at_least('rounds', benchmark.rounds, 1)
    if not 0 < benchmark.lap_seconds <= 3600:
        raise FlagError(f'--lap_seconds={benchmark.lap_seconds:g} must be above 0 and at most 3600')
    for name in ('json', 'png'):
        folder = os.path.dirname(getattr(benchmark, name)) or '.'
        if getattr(benchmark, name) and not os.access(folder, os.W_OK):
            raise FlagError(f'--{name}={getattr(benchmark, name)}: cannot write in {folder}')


def check_plan(plan: PlanConfig) -> None:
    """Raises FlagError for a number out of its range, a list that is none, or files that cannot be written."""
    workers, backups = numbers_of('workers', plan.workers), numbers_of('backups', plan.backups, 0)
    if plan.ps != 'auto':
        numbers_of('ps', plan.ps)
    for name in ('gpus', 'batch_size', 'speed', 'target'):
        _at_least(name, getattr(plan, name), 1 if name == 'gpus' else 0)
    check_partition_mb(plan.partition_mb)
    if not plan.sync and max(backups):
        raise FlagError(f'--backups={plan.backups}: asynchronous workers wait for nobody; backups need --sync')
    if max(backups) >= max(workers):
        raise FlagError(f'--backups={plan.backups}: the most must be below the workers, of which there are at most '
                        f'{max(workers)}')
    gbits_of(plan.network)
    count, _ = slow_of(plan.slow)
    if count > max(workers):
        raise FlagError(f'--slow={plan.slow}: there are at most {max(workers)} workers')
    _one_of('wire_dtype', plan.wire_dtype, WIRE_DTYPES)
    for name in ('json', 'png', 'html', 'calibrate', 'laboratory'):
        folder = os.path.dirname(getattr(plan, name)) or '.'
        if getattr(plan, name) and not os.access(folder, os.W_OK):
            raise FlagError(f'--{name}={getattr(plan, name)}: cannot write in {folder}')


def numbers_of(name: str, text: str, least: int = 1, most: int = 256) -> list[int]:
    """'1,2,4' as numbers, each from `least` to `most`; FlagError naming the flag for anything else."""
    parts = [part.strip() for part in text.split(',')]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise FlagError(f'--{name}={text} is no list of numbers such as 1,2,4')
    for number in map(int, parts):
        if not least <= number <= most:
            raise FlagError(f'--{name}={text}: {number} must be at least {least} and at most {most}')
    return list(dict.fromkeys(map(int, parts)))


def gbits_of(text: str) -> list[float]:
    """'10,25' as Gbit/s; [0.0] for ''. FlagError for what is none."""
    try:
        speeds = [float(part) for part in text.split(',')] if text.strip() else [0.0]
    except ValueError:
        speeds = [-1.0]
    if text.strip() and not all(0.001 <= speed <= 10000 for speed in speeds):
        raise FlagError(f'--network={text} is no list of Gbit/s such as 10,25,100')
    return list(dict.fromkeys(speeds))


def slow_of(text: str) -> tuple[int, float]:
    """'1:3' as (1, 3.0): one worker takes three times as long; (0, 1.0) for ''. FlagError for what is none."""
    count, colon, factor = text.partition(':')
    try:
        pair = (int(count), float(factor)) if text else (0, 1.0)
    except ValueError:
        pair = (-1, 0.0)
    if text and not (colon and 1 <= pair[0] <= 256 and 1 <= pair[1] <= 1000):
        raise FlagError(f'--slow={text} is not like 1:3, one worker that takes three times as long')
    return pair


def check_experiments(config: ExperimentsConfig) -> None:
    """Raises FlagError for a missing folder or the name of no experiment."""
    if not config.output_directory:
        raise FlagError('--output_directory is empty: name the folder for tables and figures')
    for name in filter(None, config.only.split(',')):
        if name.strip() not in EXPERIMENTS:
            raise FlagError(f'--only={config.only}: {name.strip()!r} must be one of {", ".join(EXPERIMENTS)}')


def _at_least(name: str, value, minimum) -> None:
    if value < minimum:
        raise FlagError(f'--{name}={value} must be at least {minimum}')


def _at_most(name: str, value, maximum) -> None:
    if value > maximum:
        raise FlagError(f'--{name}={value} must be at most {maximum}')


def _one_of(name: str, value: str, choices: tuple) -> None:
    if value not in choices:
        raise FlagError(f'--{name}={value} must be one of {", ".join(filter(None, choices))}')


def _share(name: str, value: float, zero: bool) -> None:
    if not (0 <= value < 1 if zero else 0 < value < 1):
        raise FlagError(f'--{name}={value:g} must be at least 0 and below 1')
