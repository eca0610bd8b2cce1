"""What others have measured and printed, as data: set-up, numbers, address. What a source leaves open is said."""

from typing import NamedTuple

BENCHMARKS = ('github.com/tensorflow/tensorflow, tensorflow/docs_src/performance/benchmarks.md at 6535ed7c (May 2017, '
              'TensorFlow 1.1, CUDA 8, sgd, synthetic images)')
CSCS = ('github.com/e-bug/distributed-tensorflow-benchmarks, report/source/benchmarks.tex and '
        'google-benchmarks/Results.ipynb (August 2017, TensorFlow 1.1, Inception v3, mean of 5 runs, best number of ps '
        'of all that were tried)')


class Series(NamedTuple):
    """One row of a table. batch: images per GPU and step. measured: GPUs -> images/s. ps: GPUs -> number of ps.
    replicated: the GPUs at which weights were kept on the workers."""

    title: str
    network: str
    batch: int
    measured: dict[int, float]
    ps: dict[int, int] = {}
    replicated: tuple[int, ...] = ()


def _series(title: str, network: str, batch: int, *speeds: float, gpus=(1, 2, 4, 8), **more) -> Series:
    return Series(title, network, batch, dict(zip(gpus, speeds, strict=True)), **more)


_ON_EC2 = {'gpus': (1, 8, 16, 32, 64), 'replicated': (16, 32, 64)}
# Google on Amazon: machines of 8 K80 (p2.8xlarge), synchronous, ps on the workers' machines. The network is 10 Gbit/s
# by Amazon's sheet, not by the page.
GOOGLE_EC2 = (
    _series('Inception v3', 'inception_v3_2017', 64, 29.7, 229, 459, 902, 1783, ps={16: 2, 32: 4, 64: 6}, **_ON_EC2),
    _series('Inception v3, batch 32', 'inception_v3_2017', 32, 29.2, 219, 427, 820, 1608, ps={16: 2, 32: 4, 64: 6},
            **_ON_EC2),
    _series('ResNet-50', 'resnet_50', 64, 52.4, 378, 751, 1388, 2744, ps={16: 2, 32: 4, 64: 8}, **_ON_EC2),
    _series('ResNet-50, batch 32', 'resnet_50', 32, 48.4, 333, 667, 1180, 2315, ps={16: 2, 32: 4, 64: 4}, **_ON_EC2),
    _series('ResNet-152, batch 32', 'resnet_152', 32, 19.4, 146, 291, 565, 981, ps={16: 2, 32: 4, 64: 4}, **_ON_EC2))

_NODES = (1, 2, 4, 8, 16, 32, 64, 128)
# One P100 per node; the rate of its Aries network under TCP is not printed.
PIZ_DAINT = _series(
    'Piz Daint', 'inception_v3_2017', 64, 138.23, 264.57, 523.38, 1018.18, 2001.00, 3840.35, 7118.31, 9219.70,
    gpus=_NODES, ps={2: 1, 4: 3, 8: 2, 16: 4, 32: 12, 64: 40, 128: 116}, replicated=(4,))
# One K80 per machine; "high" is all that Amazon says of its network.
P2_XLARGE = _series(
    'p2.xlarge', 'inception_v3_2017', 64, 30.55, 57.45, 114.57, 228.41, 431.64, 825.64, 996.32, 1077.59,
    gpus=_NODES, ps={2: 2, 4: 4, 8: 8, 16: 12, 32: 32, 64: 64, 128: 128}, replicated=(2, 4, 8, 16))

# GPUs of one machine, variables on its CPU. Unknown: which GPUs share a bus, the rate of the memory. Two K80 are on one
# board and share its power.
GCE_K80 = (
    _series('Inception v3', 'inception_v3_2017', 64, 30.5, 57.8, 116, 227),
    _series('ResNet-50', 'resnet_50', 64, 51.9, 99.0, 195, 387),
    _series('ResNet-152', 'resnet_152', 32, 20.0, 38.2, 75.8, 148),
    _series('AlexNet', 'alexnet', 512, 656, 1209, 2328, 4640),
    _series('VGG16', 'vgg_16', 32, 35.4, 64.8, 120, 234),
    _series('Inception v3, batch 32', 'inception_v3_2017', 32, 29.3, 55.0, 109, 216),
    _series('ResNet-50, batch 32', 'resnet_50', 32, 49.5, 95.4, 183, 362))
DGX_P100 = (
    _series('Inception v3', 'inception_v3_2017', 64, 142, 284, 569, 1131),
    _series('ResNet-50', 'resnet_50', 64, 219, 422, 852, 1734),
    _series('ResNet-152', 'resnet_152', 64, 91.8, 181, 356, 716),
    _series('Inception v3, batch 32', 'inception_v3_2017', 32, 128, 259, 520, 995),
    _series('ResNet-50, batch 32', 'resnet_50', 32, 195, 368, 768, 1485),
    _series('ResNet-152, batch 32', 'resnet_152', 32, 82.7, 160, 317, 632))

# The program of 2016 itself on p2.16xlarge (16 K80): a worker per GPU and one ps per machine. Batch from its readme.
PROGRAM_2016_SOURCE = 'github.com/tensorflow/tensorflow/issues/5683 (November 2016), github.com/indhub/tfperftest'
PROGRAM_2016 = _series('slim Inception v3', 'inception_v3', 32, 17.525, 34.568, 62.58, 94.832, 99.072, 140.704, 183.488,
                       322.816, gpus=_NODES, ps={1: 1, 2: 1, 4: 1, 8: 1, 16: 1, 32: 2, 64: 4, 128: 8})

# Forward only, on CPUs, one ps: workers -> images/s.
FORWARD_ONLY_SOURCE = 'github.com/tensorflow/benchmarks/issues/84 (TensorFlow 1.4, CPUs)'
FORWARD_ONLY = _series('forward only', 'inception_v3_2017', 32, 22.30, 45.05, 46.61, 48.0)

# Ohio State, 12 nodes of one K80, 1 ps on a CPU and 11 workers, gRPC: network -> (bytes, batch, images/s). Inception v4
# has 42.7 million weights.
OHIO_SOURCE = 'hidl.cse.ohio-state.edu/performance/rdma-tensorflow'
OHIO = {'Inception v4': (42.7e6 * 4, 16, 51), 'ResNet-152': (240.779428e6, 8, 18)}

# Steps that only move: 16 ps; (bytes, workers) -> seconds.
NULL_STEP_SOURCE = 'Abadi et al., "TensorFlow: A system for large-scale machine learning", OSDI 2016, section 6.2'
NULL_STEP_PS = 16
NULL_STEP = {(1e9, 1): 1.01, (1e8, 1): 0.147, (1e8, 100): 0.613, (1e9, 100): 7.16}

# docs/experiments.md, 3, as it was with variables dealt in the order of their making: links of 1.25 GB/s, a worker
# waits 0.25 s and overlaps nothing. Number of ps -> bytes on the fullest, and workers -> steps/s.
OWN_SOURCE = 'docs/experiments.md of this project, 3 (ps_bytes)'
OWN_LINK = 1.25e9
OWN_STEPS = {1: (108583880, {1: 2.03, 2: 4.04, 4: 8.29, 8: 10.7, 16: 11.8}),
             2: (57833728, {1: 2.58, 2: 5.07, 4: 10.2, 8: 17.2, 16: 20.7}),
             4: (32262400, {1: 3.27, 2: 6.06, 4: 12.8, 8: 23.8, 16: 35.4})}
# The same, 8 (staleness): workers -> updates between a reading and its own.
OWN_STALENESS_SOURCE = 'docs/experiments.md of this project, 8 (staleness)'
OWN_STALENESS = {2: 0.93, 4: 2.79, 8: 6.3}
