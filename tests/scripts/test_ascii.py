"""A screen of ASCII, a class `été`, a file whose name is no UTF-8: every program, from photographs to classes."""

import json
import os
import pathlib
import subprocess
import sys

from conftest import COLOURS, ROOT, make_images

# Imports TensorFlow once and leaves it alone; each program then runs as it would from a shell, in a fork of this.
PROGRAMS_IN_TURN = '''
import json, os, runpy, sys
import tensorflow
sys.path.insert(0, sys.argv[1])
for name, *arguments in json.loads(sys.argv[2]):
    pid = os.fork()
    if not pid:
        for number, stream in ((1, 'out'), (2, 'err')):
            os.dup2(os.open(f'{name}.{stream}', os.O_CREAT | os.O_WRONLY), number)
        sys.argv = [os.path.join(sys.argv[1], name), *arguments]
        runpy.run_path(sys.argv[0], run_name='__main__')
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(f'{name} ended with {code}: ' + open(f'{name}.err', errors='replace').read())
'''


def test_every_program_on_a_screen_of_ascii(tmp_path):
    photographs = os.fsencode(tmp_path / 'photographs')
    make_images(pathlib.Path(os.fsdecode(photographs)), 4, {'été': COLOURS['red'], 'noël': COLOURS['blue']}, seed=1)
    os.rename(photographs + '/été/été_1_0.jpg'.encode(), photographs + '/été/caf'.encode() + b'\xe9.jpg')
    programs = [
        ['build_image_data.py', '--train_directory=photographs', '--validation_directory=photographs',
         '--output_directory=records', '--train_shards=1', '--validation_shards=1', '--num_threads=1'],
        ['train.py', '--data_dir=records', '--train_dir=run', '--max_steps=2', '--width=0.05', '--image_size=75',
         '--batch_size=4', '--log_every_steps=1'],
        ['evaluate.py', '--checkpoint_dir=run', '--run_once', '--report_dir=report'],
        ['export.py', '--checkpoint_dir=run', '--export_dir=model'],
        ['classify.py', 'model', 'photographs', '--json']]
    done = subprocess.run([sys.executable, '-c', PROGRAMS_IN_TURN, str(ROOT / 'scripts'), json.dumps(programs)],
                          cwd=tmp_path, env=os.environ | {'PYTHONIOENCODING': 'ascii'}, capture_output=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors='replace')
    said = {program[0]: (tmp_path / f'{program[0]}.out').read_bytes().decode('ascii') for program in programs}
    assert not [path for path in tmp_path.glob('*.err') if b'Traceback' in path.read_bytes()]
    assert json.loads(said['evaluate.py'].splitlines()[-1])['images'] == 8
    assert '\\xe9t\\xe9' in said['evaluate.py']  # The table of the classes.
    assert 'été,4,' in (tmp_path / 'report' / 'per_class.csv').read_text(encoding='utf-8')
    assert json.loads((tmp_path / 'report' / 'report.json').read_text(encoding='utf-8'))['classes'][1]['name'] == 'été'
    classified = [json.loads(line) for line in said['classify.py'].splitlines()]
    assert {os.fsencode(os.path.basename(one['file'])) for one in classified} == {
        os.path.basename(path) for folder in os.listdir(photographs)
        for path in os.listdir(os.path.join(photographs, folder))} and len(classified) == 8
    assert {guess['name'] for guess in classified[0]['classes']} == {'background', 'noël', 'été'}
