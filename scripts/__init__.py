"""The programs as commands: `pip install` makes inception-train of train.py, and so on (pyproject.toml lists them).

In an installed package this folder is called inception_mg_programs. A command does what `python FOLDER/FILE` does.
"""

import functools
import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def run(program: str) -> None:
    """Runs FOLDER/program.py with the command line as it is; the program ends the process."""
    sys.path.insert(0, str(FOLDER))  # Where the programs find what they share.
    runpy.run_path(str(FOLDER / f'{program}.py'), run_name='__main__')


benchmark = functools.partial(run, 'benchmark')
build_flowers_data = functools.partial(run, 'build_flowers_data')
build_image_data = functools.partial(run, 'build_image_data')
build_imagenet_data = functools.partial(run, 'build_imagenet_data')
classify = functools.partial(run, 'classify')
convert_checkpoint = functools.partial(run, 'convert_checkpoint')
doctor = functools.partial(run, 'doctor')
evaluate = functools.partial(run, 'evaluate')
experiments = functools.partial(run, 'experiments')
export = functools.partial(run, 'export')
laboratory = functools.partial(run, 'laboratory')
launch_local = functools.partial(run, 'launch_local')
make_demo_data = functools.partial(run, 'make_demo_data')
plan = functools.partial(run, 'plan')
plot_training = functools.partial(run, 'plot_training')
report = functools.partial(run, 'report')
train = functools.partial(run, 'train')
train_distributed = functools.partial(run, 'train_distributed')
train_in_graph = functools.partial(run, 'train_in_graph')
