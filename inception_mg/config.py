"""Every setting, its default and its help text: frozen dataclasses and nothing else.

A program in scripts/ makes one flag per field; the library takes the part it needs. Names are those
of the 2016 release where it had one. checks.py refuses wrong values.
"""

import dataclasses

from inception_mg.errors import EXIT_RETRY

MODELS = ('inception_v3', 'resnet_v1_50')
IMAGE_SIZE = {'inception_v3': 299, 'resnet_v1_50': 224}  # Of the published figures.
MINIMUM_IMAGE_SIZE = {'inception_v3': 75, 'resnet_v1_50': 32}  # Below, the last grid has nothing to see.
COMPUTE_DTYPES = ('float32', 'bfloat16', 'float16')
WIRE_DTYPES = ('float32', 'bfloat16')
OPTIMIZERS = ('rmsprop', 'momentum', 'adam', 'sgd')
SCHEDULES = ('staircase', 'cosine', 'constant')
ON_BAD_IMAGE = ('skip', 'fail')
SPLITS = ('', 'branches', 'stages')
WAYS = ('one_device', 'multi_gpu', 'split_model', 'in_graph', 'between_graph')
FREEZE_POINTS = {  # Blocks after the first convolutions, in order.
    'inception_v3': (
        'mixed_35x35x256a', 'mixed_35x35x288a', 'mixed_35x35x288b', 'mixed_17x17x768a', 'mixed_17x17x768b',
        'mixed_17x17x768c', 'mixed_17x17x768d', 'mixed_17x17x768e', 'mixed_17x17x1280a', 'mixed_8x8x2048a',
        'mixed_8x8x2048b', 'logits'),
    'resnet_v1_50': (
        *(f'block{block}/unit_{unit}' for block, units in enumerate((3, 4, 6, 3), 1) for unit in range(1, units + 1)),
        'logits')}
SOURCES = {'2016': 'names of the 2016 program', 'slim': 'names of TF-slim', 'keras': "layout of Keras's InceptionV3",
           'own': 'names of a training by this program'}
EXPORT_FORMATS = ('saved_model', 'tflite', 'frozen_graph', 'keras', 'onnx')
QUANTIZE = ('', 'dynamic', 'float16', 'int8')
INPUT_RANGES = ('-1,1', '0,1')
WITHIN = ('eval_dir', 'report_dir', 'keep_best', 'stop_after_no_gain', 'stop_at_precision')  # Of --eval_every_steps.
PLAN_MACHINES = ('dgx1_p100', 'ec2_k80', 'piz_daint', 'p2_xlarge')
EXPERIMENTS = (
    'towers_equal', 'split_gain', 'ps_bytes', 'stragglers', 'backups', 'dead_worker', 'machines', 'staleness')


def option(default, help_text: str, choices: tuple = ()):
    """Returns a dataclass field that carries its help text and, for an enumeration, its choices."""
    return dataclasses.field(default=default, metadata={'help': help_text, 'choices': choices})


@dataclasses.dataclass(frozen=True)
class BuildConfig:
    """What scripts/build_image_data.py needs: folders of images in, shards of records out."""

    train_directory: str = option('', 'Folder, .tar or .tgz with one folder of training images per class.')
    validation_directory: str = option('', 'Folder, .tar or .tgz with one folder of validation images per class.')
    validation_split: float = option(
        0.0, 'Share of the images in --train_directory, or in a list without splits, that become the validation set: '
        'chosen by a hash of class/name, so that images added later move no others. 0 = none.')
    image_list: str = option(
        '', 'CSV file of images instead of folders: path,label or path,label,split (train or validation), with or '
        "without a header; paths are relative to the file's folder.")
    output_directory: str = option('', 'Where the shards, labels.txt and dataset.json are written.')
    labels_file: str = option(
        '', 'Text file with one class (folder) name per line. Default: every folder, in sorted order.')
    train_shards: int = option(2, 'Number of shards of the training set.')
    validation_shards: int = option(2, 'Number of shards of the validation set.')
    num_threads: int = option(2, 'Number of processes that convert images.')
    on_bad_image: str = option(
        'skip', 'What to do with a file that is no readable image: skip it (and exit with 3 after '
        'writing the rest), or fail before any shard is put in place.', ON_BAD_IMAGE)
    allow_one_class: bool = option(False, 'Build records of one class only, which mostly is a folder too many.')
    allow_nested_folders: bool = option(
        False, 'Build records where each class folder holds only folders; all images below are of the class.')
    jpeg_quality: int = option(95, 'Quality of JPEGs made from other formats, 1 to 100.')
    describe: bool = option(
        False, 'Write no records: count those already in --output_directory and write the '
        'dataset.json that train and evaluate read (for records of the 2016 program, or of TensorFlow Datasets).')


@dataclasses.dataclass(frozen=True)
class ImagenetConfig:
    """What scripts/build_imagenet_data.py needs: ILSVRC2012 as people have it in, shards of records out."""

    source: str = option(
        '', 'Folder with ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, or with the unpacked folders train and '
        "val, or Kaggle's tree; labels and boxes that lie in it are found too.")
    train_directory: str = option('', 'Training images that lie elsewhere: a tar of tars, or a folder of n01440764 '
                                  'and so on. Default: those in --source.')
    validation_directory: str = option('', 'Validation images that lie elsewhere: a tar, a folder of images or one of '
                                       'folders per synset. Default: those in --source.')
    output_directory: str = option('', 'Where the shards, labels.txt and dataset.json are written.')
    only_subset: str = option('', 'Build only this one.', ('', 'train', 'validation'))
    train_shards: int = option(1024, 'Number of shards of the training set.')
    validation_shards: int = option(128, 'Number of shards of the validation set.')
    num_threads: int = option(8, 'Number of processes that convert images.')
    labels_file: str = option(
        '', 'Text file with one synset per line (imagenet_lsvrc_2015_synsets.txt): label k is line k. Default: all, '
        'sorted, which is the same.')
    validation_labels: str = option(
        '', "Labels of the validation images: LOC_val_solution.csv, a file of 50000 synsets, the devkit or its ground "
        'truth. Default: what lies in --source.')
    imagenet_metadata_file: str = option(
        '', 'Text file with a synset and its words per line. Default: imagenet_metadata.txt, meta.mat or '
        'LOC_synset_mapping.txt in --source.')
    bounding_box_file: str = option(
        '', 'imagenet_2012_bounding_boxes.csv, or a folder or tar of XML annotations. Default: what lies in --source.')
    on_bad_image: str = option(
        'skip', 'What to do with a file that is no readable image: skip it (and exit with 3 after writing the rest), '
        'or fail.', ON_BAD_IMAGE)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """How shards become batches."""

    data_dir: str = option(
        '', 'Folder with the shards and dataset.json of build_image_data.py. For training also synthetic:1000: '
        'made-up images of 1000 classes from memory, to try machines before there is data.')
    batch_size: int = option(
        32, 'Images per step of this process; split evenly over its towers.')
    image_size: int = option(
        299, f'Side of the square input images in pixels (ResNet-50: {IMAGE_SIZE["resnet_v1_50"]}); at least '
        f'{MINIMUM_IMAGE_SIZE["inception_v3"]} for Inception '
        f'v3, {MINIMUM_IMAGE_SIZE["resnet_v1_50"]} for ResNet-50.')
    num_preprocess_threads: int = option(
        4, 'Images decoded and distorted at the same time on each host.')
    num_readers: int = option(4, 'Shards read at the same time on each host.')
    input_queue_memory_factor: int = option(
        16, 'The shuffle buffer holds 1024 x this many encoded images, or all of them if fewer.')
    distort: bool = option(
        True, 'Distort training images (crop, flip, colour) as the 2016 release does.')
    skip_damaged_records: bool = option(
        False, 'Go on with the next shard at a damaged record (and count it) instead of stopping.')
    data_seed: int = option(
        0, 'Seed of the shuffling and the distortions: the same order each run, and a resumed run goes on in it where '
        'it stopped. 0 = a new order each time.')


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The network and its loss."""

    model: str = option('inception_v3', 'The network.', MODELS)
    width: float = option(
        1.0, 'Multiplies the number of channels of every layer (multiples of 8, at least 8).')
    compute_dtype: str = option(
        'float32', 'Type of activations and products; variables, batch-norm statistics and losses '
        'stay float32.', COMPUTE_DTYPES)
    batch_norm_decay: float = option(
        0.9997, 'Decay of the batch-norm statistics; use 0.9 for runs of a few hundred steps.')
    dropout_keep_prob: float = option(0.8, 'Share of the last features that dropout keeps; ResNet has no dropout.')
    weight_decay: float = option(0.00004, 'Factor of the L2 loss of every weight.')
    label_smoothing: float = option(0.1, 'Share of the target spread evenly over all classes.')
    aux_loss_weight: float = option(0.4, 'Weight of the auxiliary head of Inception v3 in the loss.')
    freeze_below: str = option(
        '', 'Train this block, those after it and the heads; all before it, batch-norm statistics too, stays as '
        'it is.', ('', *dict.fromkeys(point for points in FREEZE_POINTS.values() for point in points)))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, its schedule and the moving averages of the weights."""

    optimizer: str = option('rmsprop', 'What makes updates of gradients; the release has rmsprop.', OPTIMIZERS)
    initial_learning_rate: float = option(0.1, 'Learning rate of the first step (after the warm-up).')
    schedule: str = option(
        'staircase', 'How the learning rate goes on: staircase, as in the release; cosine, to 0 at --num_epochs; or '
        'constant.', SCHEDULES)
    num_epochs_per_decay: float = option(
        30.0, 'Epochs (of images consumed) after which the learning rate decays, in the staircase.')
    learning_rate_decay_factor: float = option(0.16, 'Factor of each learning-rate decay.')
    warmup_epochs: float = option(0.0, 'Epochs in which the learning rate rises to its first value.')
    num_epochs: float = option(
        0.0, 'Stop after so many epochs (of images consumed), or at --max_steps if that is sooner. 0 = at --max_steps.')
    clip_norm: float = option(
        0.0, 'Scale the gradients of an update down together where their global norm is above this; 0 = never. Under '
        '--sync that of the averaged gradient.')
    momentum: float = option(0.9, 'Momentum of --optimizer=momentum.')
    rmsprop_decay: float = option(0.9, 'Decay of the squared gradients.')
    rmsprop_momentum: float = option(0.9, 'Momentum of RMSProp.')
    rmsprop_epsilon: float = option(1.0, 'Added to the mean of the squared gradients.')
    adam_beta1: float = option(0.9, 'Decay of Adam\'s mean gradient.')
    adam_beta2: float = option(0.999, 'Decay of Adam\'s mean squared gradient.')
    adam_epsilon: float = option(1e-8, 'Added to the root of that.')
    moving_average_decay: float = option(
        0.9999, 'Decay of the averages that evaluation uses; use 0.99 for runs of a few hundred steps.')


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """Which devices of this machine the towers use."""

    num_gpus: int = option(
        0, 'GPUs to use: a tower on each, or with --split_model a tower on every --split_devices of '
        'them. 0 = one tower. On a machine without GPUs that many CPU devices take their place.')
    split_model: str = option(
        '', 'Split each tower over several devices: by the independent branches of every Inception '
        'block, or by consecutive stages of the network.', SPLITS)
    split_devices: int = option(2, 'Devices of one tower under --split_model.')
    gpu_memory_fraction: float = option(
        0.0, 'Share of each GPU\'s memory to take, 0 to 1. 0 = grow as needed.')
    log_device_placement: bool = option(False, 'Print the device of every operation.')
    plain_operations: bool = option(
        False, 'Use the plain form of every operation that has a faster twin (to read, to compare, or when a new '
        'TensorFlow breaks a fast one). Tasks of one cluster may differ in it.')


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How long to train, and what to leave in the training directory."""

    train_dir: str = option('', 'Checkpoints and summaries; training resumes from what is in it.')
    seed: int = option(
        0, 'Seed of the initial weights, dropout and (if --data_seed says nothing else) the images\' order and '
        'distortions: on one device two runs with one seed are equal. 0 = new each time.')
    max_steps: int = option(10000000, 'Stop when global_step reaches this.')
    log_every_steps: int = option(10, 'Steps between two status lines.')
    trace_step: int = option(
        0, 'Write TRAIN_DIR/trace_step_N.json, a trace of that step of every task, for Perfetto or chrome://tracing. '
        '0 = only say, at the tenth step, whether compute, wire or input dominates; -1 = not even that.')
    eval_every_steps: int = option(
        0, 'Save after every so many steps of the chief\'s, or the only, process, and evaluate there before it goes '
        'on: one GPU holds one process. Results as of scripts/evaluate.py. 0 = never.')
    save_interval_secs: float = option(600.0, 'Seconds between two checkpoints.')
    save_summaries_secs: float = option(
        180.0, 'Seconds between two summaries of histograms and distorted images.')
    max_checkpoints_to_keep: int = option(
        5, 'Of the checkpoints that this job has written, over all its restarts, keep the newest this many; 0 = all. '
        'Those that another job left are never touched.')
    fine_tune: bool = option(
        False, 'Take all but the two heads from --pretrained_model_checkpoint_path.')
    pretrained_model_checkpoint_path: str = option(
        '', 'Weights that a new training starts from: a checkpoint (or its folder) of this program, of the 2016 '
        'program or of TF-slim, or a file of Keras\'s InceptionV3.')


@dataclasses.dataclass(frozen=True)
class OldConfig:
    """Flags of the 2016 programs that say nothing new here, so that their command lines run."""

    subset: str = option('train', 'The images to train on, as in 2016: train.', ('train', 'validation'))
    protocol: str = option('grpc', 'What servers speak, as in 2016: grpc.')


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Which task of which cluster this process is, and how its workers join their gradients."""

    job_name: str = option('', 'This task\'s job; worker 0 is the chief. Without any cluster flag the variable '
                           'TF_CONFIG says who is who.', ('', 'ps', 'worker'))
    task_id: int = option(0, 'This task\'s number within its job, from 0.')
    ps_hosts: str = option('', 'Comma-separated host:port of the parameter servers; equal on all tasks.')
    worker_hosts: str = option('', 'Comma-separated host:port of the workers; equal on all tasks.')
    slurm_ps: int = option(
        -1, 'Under srun, instead of the flags above: the first so many tasks are ps, the others workers. -1 = not by '
        'Slurm.')
    slurm_first_port: int = option(
        0, 'With --slurm_ps, the port of each node\'s first task; its next ones have the ports above. 0 = ports that '
        'follow from the job\'s number.')
    gpus: str = option('', 'Numbers of the GPUs of this machine that this worker may use, such as 0,1. '
                       'Default: all that CUDA_VISIBLE_DEVICES shows.')
    sync: bool = option(
        False, 'Synchronous: each update averages a gradient of every worker. Otherwise each worker updates '
        'as soon as it is ready.')
    num_replicas_to_aggregate: int = option(
        -1, 'Gradients per update (asks for --sync); with fewer than the workers the others are backups, '
        'whose late gradients are dropped. -1 = one of every worker.')
    wire_dtype: str = option(
        'float32', 'In which weights and gradients cross between machines; bfloat16 halves the bytes. Variables and '
        'updates stay float32.', WIRE_DTYPES)
    prefetch_variables: bool = option(
        False, 'Asynchronous only: fetch the weights of the next step during this one. Gradients are then of weights '
        'that are one update of this worker older.')
    partition_mb: float = option(
        0.0, 'With several ps, cut trained variables of more than so many MB into slices, which lie on different ps; '
        'equal on all workers. Checkpoints hold whole tensors and do not depend on it. 0 = none is cut.')
    start_timeout: float = option(300.0, 'Seconds that a task waits at the start for those that are missing.')
    lost_timeout: float = option(
        300.0, 'Seconds that a task waits for one that was there and is gone; then it exits with --retry_exit_code.')
    retry_exit_code: int = option(
        EXIT_RETRY, 'The exit code of a task that lost the rest of the cluster and should be started again; '
        'docs/operations.md says what managers make of it.')


@dataclasses.dataclass(frozen=True)
class InGraphConfig:
    """What in-graph training adds to ClusterConfig: its one graph can split a tower over machines."""

    split_over_hosts: bool = option(
        False, 'Under --split_model, each tower has one device of every worker: its branches or stages are on '
        'different machines.')


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """What scripts/launch_local.py needs: a cluster on this machine."""

    num_ps: int = option(1, 'Parameter servers.')
    num_workers: int = option(2, 'Workers, with the chief.')
    in_graph: bool = option(False, 'In-graph: worker 0 is the one client, the others serve; --num_ps may be 0.')
    log_directory: str = option('', 'Folder for one log file per task. Default: logs in --train_dir.')
    max_restarts: int = option(3, 'Start a task that was killed, or lost the others, again this many times.')
    kill: str = option('', 'Fault drill: worker:1@step=50 kills that task at that step. Several with commas.')
    private_network: bool = option(
        False, 'Run in a network namespace of its own, where nobody else can reach the tasks\' ports '
        '(where the system allows that without root).')
    machines: bool = option(
        False, 'Give each task a machine of its own: a network namespace with an address, a name and a cable '
        '(docs/laboratory.md).')
    link: str = option('', 'With --machines: speed of each cable both ways, as 1gbit or 100mbit; empty: no limit.')
    ps_link: str = option('', 'With --machines: speed of the cables of the ps, if it is another one.')
    ipv6: bool = option(False, 'With --machines: they have IPv6 addresses and no others.')
    host_names: str = option(
        'worker1', 'With --machines: what the host lists call worker 1.', ('worker1', 'worker_1', 'address'))
    drill: str = option(
        '', 'With --machines: cut:worker1@step=50,heal:worker1@step=80 does that at these steps. Also cut:worker0-ps1 '
        'and heal:, slow:ps0=100mbit, move:worker1 (another address), kill:worker1.')


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """What a program for a model of your own (docs/your_model.md) adds to the flags of the others."""

    batch_size: int = option(0, 'Examples per step of one process, instead of the task\'s own.')
    launch: bool = option(False, 'Run a whole cluster of this program on this machine.')
    evaluate: bool = option(False, 'Evaluate the newest checkpoint on the validation examples and end.')
    export_dir: str = option('', 'Write a SavedModel of the newest checkpoint into this new folder and end.')


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """What scripts/report.py shows: which ways of running, on how many machines and devices."""

    way: str = option('', 'The way of running to report.', ('', *WAYS))
    all: bool = option(False, 'Report all five ways.')
    devices: int = option(
        0, 'Devices for towers on each machine. 0 = 2 for several towers and a split model, else 1.')
    split: str = option('branches', 'How split_model divides the network.', SPLITS[1:])
    num_ps: int = option(0, 'Parameter servers. 0 = 1 for in_graph, 2 for between_graph.')
    num_workers: int = option(2, 'Workers of in_graph and between_graph.')
    partition_mb: float = option(
        0.0, 'With several ps, cut trained variables of more than so many MB into slices. 0 = none is cut.')
    images_per_tower: int = option(2, 'Images per step of each tower.')
    num_classes: int = option(1000, 'Classes, without the background.')
    network_gbits: float = option(10.0, 'Speed of the network for which to predict, in Gbit/s.')
    output_directory: str = option('', 'Folder for report.html, report.json and a picture of each way.')


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """What scripts/evaluate.py needs besides DataConfig and ModelConfig."""

    checkpoint_dir: str = option('', 'Folder with the checkpoints to evaluate (the train_dir).')
    eval_dir: str = option('', 'Where the results go: summaries and results.jsonl.')
    subset: str = option('validation', 'Which images.', ('validation', 'train'))
    num_examples: int = option(0, 'Evaluate this many images; 0 = all of the subset, each once.')
    run_once: bool = option(False, 'Evaluate the newest checkpoint once and end.')
    eval_interval_secs: float = option(300.0, 'Seconds between two looks for a new checkpoint.')
    use_averages: bool = option(
        True, 'Use the moving averages of the weights; without it, the raw weights.')
    report_dir: str = option(
        '', 'Write per-class scores and the confusion matrix there, as tables and PNG.')
    keep_best: bool = option(
        True, 'Without --run_once: keep a copy of the checkpoint with the best precision@1 in EVAL_DIR/best.')
    stop_after_no_gain: int = option(
        0, 'Without --run_once: after this many evaluated checkpoints without a better precision@1 ask the '
        'training to save and end. 0 = never.')
    stop_at_precision: float = option(
        0.0, 'Without --run_once: ask the training to save and end once a checkpoint has this precision@1. 0 = never.')


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """What scripts/convert_checkpoint.py needs: somebody's trained weights in, a checkpoint of ours out."""

    input: str = option('', 'A checkpoint of TF-slim or of the 2016 program (or its folder), or a .h5, .weights.h5 or '
                        '.keras file of Keras\'s InceptionV3.')
    output_directory: str = option('', 'Where the checkpoint is written; there must be none yet.')
    source: str = option('auto', 'Who wrote --input; auto looks into it.', ('auto', *SOURCES))


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """What scripts/export.py needs: a checkpoint in, a model for serving out."""

    checkpoint_dir: str = option('', 'Folder with the checkpoints (the newest is taken), or one checkpoint.')
    export_dir: str = option('', 'The folder to write; it must not be there yet, or be empty.')
    format: str = option(
        'saved_model', 'A SavedModel for encoded and for float images; a TFLite file; a GraphDef; a .keras file with '
        'keras.applications.InceptionV3; an ONNX file (with tf2onnx).', EXPORT_FORMATS)
    use_averages: bool = option(
        True, 'Export the moving averages of the weights; without it, the raw weights.')
    compute_dtype: str = option(
        'float32', 'What a SavedModel or a GraphDef computes in; logits are float32. With --data_dir its precision is '
        'compared with that of float32.', COMPUTE_DTYPES)
    quantize: str = option(
        '', 'Of a TFLite file: weights in 8 bits (dynamic) or 16 (float16), or all in 8 (int8, by training images of '
        '--data_dir). With --data_dir precision before and after is said.', QUANTIZE)
    input_range: str = option(
        '-1,1', 'The range of float images that a TFLite or ONNX file takes; a SavedModel has a signature for each.',
        INPUT_RANGES)
    num_examples: int = option(500, 'Validation images on which precision is compared; 0 = all.')


@dataclasses.dataclass(frozen=True)
class ClassifyConfig:
    """How scripts/classify.py shows what an exported model sees in images."""

    top_k: int = option(5, 'Classes to print of each image, the most probable first.')
    json: bool = option(False, 'Print one JSON object per image.')
    batch_size: int = option(32, 'Images that are classified at the same time.')
    num_threads: int = option(1, 'Processes that read and convert images.')


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What scripts/benchmark.py needs besides DataConfig and ModelConfig."""

    only: str = option('', 'Run only these contenders, with commas (as one_device,keras,matmul). Default: all.')
    peer: str = option(
        'all', 'What others offer, to run beside ours, with commas: keras, mirrored, multiworker, parameter_server, '
        'input_2016, keras_inference; all or none.')
    rounds: int = option(4, 'Rounds in which all contenders of a group take turns.')
    lap_seconds: float = option(1.0, 'How long a turn of a contender should last; it is at least two steps.')
    full: bool = option(
        False, 'Images of 299 pixels, batches of 32 and 9 rounds, where their own flags say nothing.')
    json: str = option('', 'Write all figures to this file.')
    png: str = option('', 'Draw the ratios to this file.')


@dataclasses.dataclass(frozen=True)
class ExperimentsConfig:
    """What scripts/experiments.py needs: which of the claims are run, and where the figures go."""

    output_directory: str = option(
        '', 'Where tables (experiments.json) and one PNG per experiment go; those of earlier calls stay.')
    only: str = option('', f'Comma-separated names of the experiments to run: {", ".join(EXPERIMENTS)}. Default: all.')
    full: bool = option(False, 'Longer runs, larger settings: much more than the nine minutes of all.')
    data_dir: str = option('', 'Records of build_image_data.py for dead_worker and staleness. Default: those of '
                           'make_demo_data.py, made in --output_directory.')


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """What scripts/plan.py is asked: of which machine, for which jobs, and where the answer goes."""

    machine: str = option('', 'A file that --calibrate wrote, or the name of a machine that is built in (from '
                          f'published tables): {", ".join(PLAN_MACHINES)}.')
    workers: str = option('1,2,4,8,16,32', 'Numbers of workers (machines), with commas.')
    ps: str = option('auto', 'Numbers of parameter servers, with commas; auto = the fewest within 2 % of the best.')
    network: str = option('', 'Speeds of the network in Gbit/s, with commas, such as 10,25,100. Default: that which '
                          'the machine has, or was measured with.')
    gpus: int = option(1, 'GPUs of one worker.')
    batch_size: int = option(0, 'Images per GPU and step. 0 = as many as the machine was measured with.')
    speed: float = option(0.0, 'Images/s of one GPU, for one that you do not have yet. 0 = that of the machine.')
    sync: bool = option(True, 'Synchronous updates, of a gradient of every worker. --async is the same as --nosync.')
    backups: str = option('0', 'Numbers of backup workers, with commas; they are among --workers.')
    slow: str = option('', 'Some of the workers are slower: 1:3 = one takes three times as long.')
    wire_dtype: str = option('float32', 'In which weights and gradients cross; bfloat16 halves the bytes.', WIRE_DTYPES)
    partition_mb: float = option(0.0, 'Variables larger than so many MB are cut into slices. 0 = none.')
    target: float = option(0.0, 'Say which fewest machines and ps reach so many images/s, for each network.')
    calibrate: str = option('', 'Measure this machine in two minutes and write what was found to this file.')
    published: bool = option(False, 'Recompute published tables: predicted beside measured; exits with 3 when a '
                             'distributed point is off by more than 10 %, or their mean by 4 %.')
    check: str = option('', 'The train_dir of a finished run on a cluster: what it logged beside what is predicted.')
    laboratory: str = option('', 'Run set-ups in a laboratory of machines on this one (Linux), predicted beside '
                             'measured, and write them to this file; if it is there already, predict those anew.')
    json: str = option('', 'Write all rows to this file.')
    png: str = option('', 'Draw images/s over workers, a curve per network, to this file.')
    html: str = option('', 'Write a page with sliders, complete in this one file.')
