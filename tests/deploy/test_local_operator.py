"""The manifests on this machine: real programs, started as each operator starts them; pods killed and deleted."""

import re
from functools import partial

import pytest

pytest.importorskip('yaml', reason='PyYAML is not installed')
import manifests  # noqa: E402
from local_operator import Jobs, Machines, TFJob, Volcano  # noqa: E402

from dist.hosts import resolve  # noqa: E402
from inception_mg.errors import UserError  # noqa: E402

pytestmark = pytest.mark.cluster
TINY = ('--width=0.05', '--image_size=75', '--batch_size=4', '--batch_norm_decay=0.9', '--moving_average_decay=0.9',
        '--initial_learning_rate=0.01', '--num_preprocess_threads=1', '--num_readers=1', '--log_every_steps=1',
        '--compute_dtype=float32', '--eval_interval_secs=1')


def flags(folder, data: str, steps: int) -> list[str]:
    return [*TINY, f'--data_dir={data}', f'--train_dir={folder}/run', f'--max_steps={steps}']


def begun(text: str) -> bool:
    """Whether the chief has written two status lines."""
    return len(re.findall(r'^step +\d+/', text, re.MULTILINE)) >= 2


def saved(text: str) -> int:
    """The step of the chief's last checkpoint."""
    return int(re.findall(r'^saved \S+-(\d+)$', text, re.MULTILINE)[-1])


def test_a_tfjob_trains_loses_pods_and_ends(three_classes, tmp_path):
    """With records and a real evaluator."""
    with TFJob(manifests.load(manifests.FOLDER / 'tfjob'), tmp_path, flags(tmp_path, three_classes, 40)) as job:
        job.run_until(lambda: begun(job.text('inception-chief-0')))
        assert job.delete_pod('inception-worker-1') == 143
        job.kill('inception-ps-1')
        job.run_until(lambda: job.made('inception-ps-1') == 2)
        assert job.finish() == 'Succeeded'
        assert 'inception-ps-1 ended with 137' in job.events and job.made('inception-worker-1') == 2
        assert saved(job.text('inception-chief-0')) >= 40
        assert 'ps 1 is ready for 3 workers' in job.text('inception-ps-1')
        assert {job.phase(f'inception-{task}-0') for task in ('ps', 'chief', 'worker', 'evaluator')} == {'Succeeded'}
        assert 'precision@1' in job.text('inception-evaluator-0')


def test_a_volcano_job_without_data_loses_pods_and_ends(tmp_path):
    resources = manifests.load(manifests.FOLDER / 'overlays' / 'synthetic-volcano')
    with Volcano(resources, tmp_path, flags(tmp_path, 'synthetic:3', 150)) as job:
        job.run_until(lambda: begun(job.text('inception-chief-0')))
        assert job.delete_pod('inception-chief-0') == 143
        job.run_until(lambda: job.made('inception-chief-0') == 2)
        job.kill('inception-worker-0')
        assert job.finish() == 'Succeeded' and job.restarts == 2
        assert saved(job.text('inception-chief-0')) >= 150
        assert 'made-up images of 3 classes' in job.text('inception-chief-0')


def test_plain_jobs_without_data_lose_pods_and_end(tmp_path):
    resources = manifests.load(manifests.FOLDER / 'overlays' / 'synthetic-jobs')
    with Jobs(resources, tmp_path, flags(tmp_path, 'synthetic:3', 40)) as job:
        job.run_until(lambda: begun(job.text('inception-worker-0')))
        assert job.delete_pod('inception-worker-0') == 143
        job.kill('inception-ps-0')
        assert job.finish() == 'Succeeded'
        assert 'inception-worker-0: Ignore' in job.events and 'inception-ps-0: Count' in job.events
        assert saved(job.text('inception-worker-0')) >= 40


def test_pods_that_come_back_at_another_address_are_found_by_their_names(tmp_path):
    """A worker and a ps, with the pods' own names and port."""
    laboratories = pytest.importorskip('dist.launch.laboratory', reason='there is no laboratory')
    try:
        laboratory = laboratories.Laboratory([]).__enter__()
    except UserError as error:
        pytest.skip(str(error))
    resources = manifests.load(manifests.FOLDER / 'overlays' / 'synthetic-tfjob')
    with laboratory, TFJob(resources, tmp_path, flags(tmp_path, 'synthetic:3', 200), Machines(laboratory)) as job:
        job.run_until(lambda: begun(job.text('inception-chief-0')))
        before = laboratory.address('inception-ps-0.default.svc')
        assert job.delete_pod('inception-worker-0') == 143
        job.kill('inception-ps-0')
        assert job.finish() == 'Succeeded'
        assert saved(job.text('inception-chief-0')) >= 200
        assert laboratory.address('inception-ps-0.default.svc') != before
        assert 'ps 0 serves on inception-ps-0.default.svc:2222' in job.text('inception-ps-0')


def test_what_operators_write_says_who_is_who(tmp_path):
    """Also a TFJob with enableDynamicWorker, where the flags have the lists."""
    lists = {'ps': [f'inception-ps-{k}.default.svc:2222' for k in (0, 1)],
             'worker': [f'inception-{task}.default.svc:2222' for task in ('chief-0', 'worker-0', 'worker-1')]}
    for operator, flavour, flag_lists in ((TFJob, 'tfjob', False), (partial(TFJob, dynamic=True), 'tfjob', True),
                                          (Volcano, 'volcano', False)):
        job = operator(manifests.load(manifests.FOLDER / flavour), tmp_path)
        words = [','.join(hosts) if flag_lists else '' for hosts in lists.values()]
        found = {pod.name: resolve(*words, '', 0, job.environment(pod)) for pod in job.wanted()}
        assert {name: cluster.name for name, cluster in found.items()} == {
            'inception-ps-0': 'ps 0', 'inception-ps-1': 'ps 1', 'inception-chief-0': 'chief',
            'inception-worker-0': 'worker 1', 'inception-worker-1': 'worker 2', 'inception-evaluator-0': 'evaluator 0'}
        for name, cluster in found.items():
            host = name + ('.inception' if flavour == 'volcano' else '.default.svc')
            assert cluster.address == ('' if 'evaluator' in name else f'{host}:2222')
            assert flavour == 'volcano' or cluster.lists == lists


@pytest.mark.parametrize('operator, flavour, chief', [
    (TFJob, 'tfjob', 'inception-chief-0'), (Volcano, 'volcano', 'inception-chief-0'),
    (Jobs, 'jobs', 'inception-worker-0')])
def test_wrong_flags_end_the_job_at_once(operator, flavour, chief, tmp_path):
    with operator(manifests.load(manifests.FOLDER / flavour), tmp_path,
                  ['--batch_size=0', '--data_dir=synthetic:3']) as job:
        assert job.finish() == 'Failed'
        assert job.made(chief) == 1 and any(event.endswith('ended with 2') for event in job.events)
