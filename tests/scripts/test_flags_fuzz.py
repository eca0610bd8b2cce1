"""Every flag of every program with values that nobody means: one line and exit 2, never a traceback.

In this process up to TensorFlow's import, where a program counts as having accepted its flags.
"""

import dataclasses
import importlib
import sys

import pytest
from absl import flags

import common
from inception_mg import config

PROGRAMS = {
    'train': (config.DataConfig, config.ModelConfig, config.OptimizerConfig, config.DeviceConfig, config.RunConfig),
    'evaluate': (config.DataConfig, config.EvalConfig, config.ModelConfig),
    'export': (config.ExportConfig, config.ModelConfig, config.DataConfig),
    'convert_checkpoint': (config.ConvertConfig,),
    'build_image_data': (config.BuildConfig,)}
NUMBERS = ('nan', 'inf', '-inf', '-1', '-1e308', '1e400', '99999999999999999999999999', '', 'x', '0x', '1,2')
TEXTS = ('', ' ', '\t', 'a*', '~nobody-of-this-name/x', 'gs://b/x', 'a\nb', 'r\udce9', '/dev/null/x', '-1', 'nan')


class _AcceptedError(Exception):
    """The program wants TensorFlow now."""


def _outcome(program: str, argv: list[str], monkeypatch, capsys) -> tuple[int | None, str]:
    """Exit code (None where it goes on to TensorFlow) and stderr."""
    def stop():
        raise _AcceptedError
    values = flags.FlagValues()
    monkeypatch.setattr(flags, 'FLAGS', values)
    monkeypatch.setattr(common, 'quiet_import', stop)
    monkeypatch.setattr(common.app, 'define_help_flags', lambda: None)
    for setting in PROGRAMS[program]:
        for name, default, text, kind, choices in common_fields(setting):
            if name not in values:
                if choices:
                    flags.DEFINE_enum(name, default, choices, text, flag_values=values)
                else:
                    DEFINE[kind](name, default, text, flag_values=values)
    module = importlib.import_module(program)
    try:
        common.run(module.main, [program, *argv])
    except _AcceptedError:
        return None, capsys.readouterr().err
    except SystemExit as end:
        return end.code, capsys.readouterr().err
    raise AssertionError('it came to no end')


DEFINE = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


def common_fields(setting: type):
    for field in dataclasses.fields(setting):
        yield field.name, field.default, field.metadata['help'], field.type, field.metadata['choices']


def _cases():
    for program, settings in PROGRAMS.items():
        for name, _, _, kind, choices in (field for setting in settings for field in common_fields(setting)):
            for value in TEXTS if kind is str and not choices else NUMBERS:
                yield program, name, value


@pytest.mark.parametrize('program', PROGRAMS)
def test_no_value_of_a_flag_ends_in_a_traceback(program, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [f'{program}.py'])
    base = {'train_dir': 'run', 'data_dir': 'records', 'checkpoint_dir': 'run', 'export_dir': 'out', 'input': 'run',
            'output_directory': 'out', 'train_directory': 'photos'}
    known = {field[0] for setting in PROGRAMS[program] for field in common_fields(setting)}
    for case, name, value in _cases():
        if case != program:
            continue
        argv = [f'--{key}={text}' for key, text in (base | {name: value}).items() if key in known]
        code, err = _outcome(program, argv, monkeypatch, capsys)
        assert code in (None, 0, 1, 2), (name, value, code, err)
        assert code is None or len(err.strip().splitlines()) <= 1 and 'Traceback' not in err, (name, value, err)
        if value in ('nan', 'inf', '-inf', '-1e308', '1e400', '', 'x') and name in NUMERIC:
            assert code == 2, (program, name, value, code)
    assert not [path for path in tmp_path.iterdir() if path.name not in ('out', 'run')]


NUMERIC = {name for settings in PROGRAMS.values() for setting in settings
           for name, _, _, kind, _ in common_fields(setting) if kind in (int, float)}
