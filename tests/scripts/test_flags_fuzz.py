"""Every flag of every program with values that nobody means: one line and exit 2, never a traceback.

In this process up to TensorFlow's import, where a program counts as having accepted its flags.
"""

import dataclasses
import importlib
import os
import sys

import pytest
from absl import flags

import common
from dist.launch.local import free_ports
from inception_mg import config

EVERYWHERE = (config.DataConfig, config.ModelConfig, config.OptimizerConfig, config.DeviceConfig, config.RunConfig)
PROGRAMS = {
    'train': EVERYWHERE,
    'train_distributed': (config.ClusterConfig, *EVERYWHERE, config.EvalConfig),
    'train_in_graph': (config.ClusterConfig, config.InGraphConfig, *EVERYWHERE),
    'launch_local': (config.LaunchConfig,),
    'doctor': (config.ClusterConfig, 'train_dir'),
    'evaluate': (config.DataConfig, config.EvalConfig, config.ModelConfig),
    'export': (config.ExportConfig, config.ModelConfig, config.DataConfig),
    'classify': (config.ClassifyConfig,),
    'convert_checkpoint': (config.ConvertConfig,),
    'build_image_data': (config.BuildConfig,), 'build_imagenet_data': (config.ImagenetConfig,),
    'make_demo_data': ('output_directory',),
    'plot_training': ('train_dir', 'eval_dir', 'output'),
    'report': (config.ReportConfig, config.ModelConfig, config.DataConfig),
    'benchmark': (config.BenchmarkConfig, config.ModelConfig, config.DataConfig),
    'experiments': (config.ExperimentsConfig,)}
BASE = {'train_dir': 'run', 'data_dir': 'records', 'checkpoint_dir': 'run', 'export_dir': 'out', 'input': 'run',
        'output_directory': 'out', 'train_directory': 'photos', 'way': 'one_device',
        'job_name': 'worker'}
OF_ONE = {'experiments': {'only': 'towers_equal'}, 'plot_training': {'output': 'curves.png'},
          'build_imagenet_data': {'source': 'downloads'}}
NUMBERS = ('nan', 'inf', '-inf', '-1', '-1e308', '1e400', '99999999999999999999999999', '', 'x', '0x', '1,2')
TEXTS = ('', ' ', '\t', 'a*', '~nobody-of-this-name/x', 'gs://b/x', 'a\nb', 'r\udce9', '/dev/null/x', '-1', 'nan')


class _AcceptedError(Exception):
    """The program wants TensorFlow now."""


def _outcome(program: str, argv: list[str], monkeypatch, capsys) -> tuple[int | None, str]:
    """Exit code (None where it goes on to TensorFlow, or to the processes that it starts) and stderr."""
    def stop(*_, **__):
        raise _AcceptedError
    values = flags.FlagValues()
    monkeypatch.setattr(flags, 'FLAGS', values)
    monkeypatch.setattr(common, 'quiet_import', stop)
    monkeypatch.setattr(common.app, 'define_help_flags', lambda: None)
    for name, default, text, kind, choices in fields_of(program):
        if choices:
            flags.DEFINE_enum(name, default, choices, text, flag_values=values)
        else:
            DEFINE[kind](name, default, text, flag_values=values)
    module = importlib.import_module(program)
    if program == 'benchmark':
        monkeypatch.setattr(module, 'Driver', stop)
    elif program == 'launch_local':
        for name in ('ForkServer', 'Laboratory'):
            monkeypatch.setattr(module.run, name, stop)
        monkeypatch.setattr(module.run.local, 'LocalCluster', stop)
    elif program == 'make_demo_data':
        monkeypatch.setitem(sys.modules, 'skimage', None)  # Else it would make 400 images for each good value.
    main = (lambda: module.main(['--train_dir=run'])) if program == 'launch_local' else module.main
    try:
        common.run(main, [program, *argv], 'MODEL IMAGE_OR_FOLDER...' if program == 'classify' else '')
    except _AcceptedError:
        return None, capsys.readouterr().err
    except SystemExit as end:
        return end.code, capsys.readouterr().err
    raise AssertionError('it came to no end')


DEFINE = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


def fields_of(program: str):
    """(name, default, help, type, choices) of the program's flags, each once."""
    found = {}
    for part in PROGRAMS[program]:
        rows = [(part, '', 'A path.', str, ())] if isinstance(part, str) else [
            (field.name, field.default, field.metadata['help'], field.type, field.metadata['choices'])
            for field in dataclasses.fields(part)]
        for row in rows:
            found.setdefault(row[0], row)
    if program == 'launch_local':  # It takes one flag of its tasks for itself.
        found |= {row[0]: row for row in fields_of('train_distributed') if row[0] == 'retry_exit_code'}
    return list(found.values())


def _cases(program: str):
    """(flag, value); under '' what is no flag: the MODEL of classify.py."""
    for name, _, _, kind, choices in fields_of(program):
        for value in TEXTS if kind is str and not choices else NUMBERS:
            yield name, value
    if program == 'classify':
        for value in TEXTS:
            yield '', value


@pytest.mark.parametrize('program', PROGRAMS)
def test_no_value_of_a_flag_ends_in_a_traceback(program, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [f'{program}.py'])
    monkeypatch.setattr(os, 'environ', os.environ.copy())  # Programs hide GPUs by a variable.
    addresses = [f'127.0.0.1:{port}' for port in free_ports(2)]
    base = BASE | OF_ONE.get(program, {}) | {'ps_hosts': addresses[0], 'worker_hosts': addresses[1]}
    numeric = {name for name, _, _, kind, _ in fields_of(program) if kind in (int, float)}
    known, accepted = {field[0] for field in fields_of(program)}, 0
    for name, value in _cases(program):
        argv = [f'--{key}={text}' for key, text in (base | {name: value}).items() if key in known]
        argv += [value if not name else 'model', 'photo.jpg'] if program == 'classify' else []
        code, err = _outcome(program, argv, monkeypatch, capsys)
        assert code in (None, 0, 1, 2), (name, value, code, err)
        assert code is None or len(err.strip().splitlines()) <= 1 and 'Traceback' not in err, (name, value, err)
        if value in ('nan', 'inf', '-inf', '-1e308', '1e400', '', 'x') and name in numeric:
            assert code == 2, (program, name, value, code)
        accepted += code is None
    # A base that is always refused would try nothing. (What is made from photographs ends before TensorFlow.)
    assert accepted or program in ('build_image_data', 'make_demo_data')
    made = {'out', 'run', *(TEXTS if program == 'experiments' else ())}  # Odd names of a folder are names.
    assert not [path for path in tmp_path.iterdir() if path.name not in made]
