"""deploy/kubernetes: every key is known, names and numbers fit together, and pods may do no more than they must."""

import dataclasses
import json
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

yaml = pytest.importorskip('yaml', reason='PyYAML is not installed')
import manifests  # noqa: E402

from dist import hosts  # noqa: E402
from inception_mg import config, errors  # noqa: E402

KUBERNETES = manifests.FOLDER
FOLDERS = sorted(path.parent.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.glob('**/kustomization.yaml')
                 if 'components' not in path.parts)
FLAVOURS = [name for name in FOLDERS if name not in ('base', 'volumes')]
DOCKERFILE = (ROOT / 'Dockerfile').read_text()


def pods(flavour: str) -> dict[str, dict]:
    templates = manifests.templates(manifests.load(KUBERNETES / flavour))
    return {name: template['spec'] for name, template in templates.items()}


@pytest.mark.parametrize('folder', FOLDERS)
def test_every_key_is_known(folder):
    resources = manifests.load(KUBERNETES / folder)
    assert resources and [wrong for each in resources for wrong in manifests.wrong_keys(each)] == []


def test_a_mistyped_key_and_a_wrong_type_are_seen():
    job = next(each for each in manifests.load(KUBERNETES / 'jobs') if each['kind'] == 'Job')
    job['spec']['template']['spec']['containers'][0]['volumeMount'] = []
    job['spec']['completions'] = '2'
    assert sorted(manifests.wrong_keys(job)) == [
        "batch/v1 Job.spec.completions is '2', no int",
        'batch/v1 Job.spec.template.spec.containers[0].volumeMount is not known']


@pytest.mark.skipif(not shutil.which('kubectl'), reason='there is no kubectl')
@pytest.mark.parametrize('folder', FOLDERS)
def test_kubectl_kustomize_reads_the_same(folder):
    command = ['kubectl', 'kustomize', str(KUBERNETES / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    theirs = {(each['kind'], each['metadata']['name']): each for each in yaml.safe_load_all(done.stdout)}
    ours = {(each['kind'], each['metadata']['name']): each for each in manifests.load(KUBERNETES / folder)}
    assert ours == theirs


@pytest.mark.parametrize('folder', FOLDERS)
def test_the_schemas_of_kubernetes_accept_them(folder):
    validate = pytest.importorskip('kubernetes_validate', reason='kubernetes-validate is not installed').validate
    resources = manifests.load(KUBERNETES / folder)
    for each in resources:
        if each['kind'] != 'TFJob' and 'volcano' not in each['apiVersion']:
            validate(each, '1.34', strict=True)
    for name, template in manifests.templates(resources).items():
        validate({'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': name, **template['metadata']},
                  'spec': template['spec']}, '1.34', strict=True)


@pytest.mark.parametrize('flavour', FLAVOURS)
def test_pods_may_do_little_and_have_time_to_save(flavour):
    user = int(re.search(r'^USER (\d+):', DOCKERFILE, re.MULTILINE)[1])
    assert len(pods(flavour)) in (3, 4)
    for name, pod in pods(flavour).items():
        container, security = pod['containers'][0], pod['securityContext']
        assert security['runAsNonRoot'] and security['runAsUser'] == user, name
        assert container['securityContext'] == {'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
                                                'capabilities': {'drop': ['ALL']}}, name
        assert not pod['automountServiceAccountToken'] and not pod['enableServiceLinks'], name
        assert pod['terminationGracePeriodSeconds'] >= 120 and 'memory' in container['resources']['limits'], name
        mounts = {mount['mountPath']: mount['name'] for mount in container['volumeMounts']}
        assert set(mounts) == {'/data', '/runs', '/etc/inception', '/tmp'}, name
        assert set(mounts.values()) == {volume['name'] for volume in pod['volumes']}, name


@pytest.mark.parametrize('flavour', FLAVOURS)
def test_gpus_are_the_workers_alone(flavour):
    with_gpu = {name for name, pod in pods(flavour).items()
                if 'nvidia.com/gpu' in pod['containers'][0]['resources']['limits']}
    assert with_gpu == (set() if 'synthetic' in flavour else {'chief', 'worker'} & set(pods(flavour)))


@pytest.mark.parametrize('flavour', FLAVOURS)
def test_the_program_and_its_flags_are_there(flavour):
    known = {field.name for part in vars(config).values() if dataclasses.is_dataclass(part)
             for field in dataclasses.fields(part)} | {'flagfile'}
    text = manifests.config_map(manifests.load(KUBERNETES / flavour), 'inception-flags')['flags.txt']
    for pod in pods(flavour).values():
        container = pod['containers'][0]
        program, *flags = container['args']
        assert (ROOT / program).exists() and '--flagfile=/etc/inception/flags.txt' in flags
        for flag in [*flags, *text.splitlines()]:
            assert re.fullmatch(r'--(\w+)=\S+', flag) and flag[2:].split('=')[0] in known, flag
        assert container['name'] == 'tensorflow' and container['image'] == 'inception-mg:0.1.0'
        assert [port['containerPort'] for port in container['ports']] == [2222]
    assert 'ENTRYPOINT ["tini", "--", "python"]' in DOCKERFILE  # What those arguments are given to.
    lost, kubelet = int(re.search('--lost_timeout=(.*)', text)[1]), 300
    assert lost > kubelet  # As long may it take until a pod is made anew.


def test_an_overlay_without_data_needs_no_volume_and_the_others_name_the_same_two():
    claims = {each['metadata']['name'] for each in manifests.load(KUBERNETES / 'volumes')}
    for flavour in FLAVOURS:
        named = {volume['persistentVolumeClaim']['claimName'] for pod in pods(flavour).values()
                 for volume in pod['volumes'] if 'persistentVolumeClaim' in volume}
        assert named == (set() if 'synthetic' in flavour else claims), flavour


@pytest.mark.parametrize('flavour', FLAVOURS)
def test_the_policy_lets_the_tasks_in_and_nobody_else(flavour):
    resources = manifests.load(KUBERNETES / flavour)
    policy = next(each['spec'] for each in resources if each['kind'] == 'NetworkPolicy')
    own = policy['podSelector']
    assert policy['policyTypes'] == ['Ingress', 'Egress']
    assert policy['ingress'] == [{'from': [{'podSelector': own}], 'ports': [{'protocol': 'TCP', 'port': 2222}]}]
    for template in manifests.templates(resources).values():
        assert own['matchLabels'].items() <= template['metadata']['labels'].items()


@pytest.mark.parametrize('flavour', [name for name in FLAVOURS if name.endswith('jobs')])
def test_the_lists_of_hosts_are_the_pods_of_the_jobs(flavour):
    resources = manifests.load(KUBERNETES / flavour)
    lists = manifests.config_map(resources, 'inception-hosts')
    service = next(each for each in resources if each['kind'] == 'Service')
    assert service['spec']['clusterIP'] == 'None'
    for job, name in (('ps', 'PS_HOSTS'), ('worker', 'WORKER_HOSTS')):
        spec = next(each['spec'] for each in resources if each['metadata']['name'] == f'inception-{job}')
        assert spec['completions'] == spec['parallelism'] and spec['completionMode'] == 'Indexed'
        assert spec['template']['spec']['subdomain'] == service['metadata']['name']
        assert hosts.parse_hosts(lists[name], name) == tuple(
            f'inception-{job}-{index}.{service["metadata"]["name"]}:2222' for index in range(spec['completions']))


def test_codes_say_the_same_in_every_flavour():
    """0 ends, 1 and 2 fail the job, all above start the task again."""
    job = next(each['spec'] for each in manifests.load(KUBERNETES / 'jobs') if each['kind'] == 'Job')
    rules = [rule for rule in job['podFailurePolicy']['rules'] if 'onExitCodes' in rule]
    assert {code: rule['action'] for rule in rules for code in rule['onExitCodes']['values']} == {
        errors.EXIT_FAILED: 'FailJob', errors.EXIT_FLAGS: 'FailJob', errors.EXIT_SIGTERM: 'Ignore'}
    volcano = next(each['spec'] for each in manifests.load(KUBERNETES / 'volcano') if each['kind'] == 'Job')
    assert [policy.get('exitCode', policy.get('event')) for policy in volcano['policies']] == [
        errors.EXIT_FAILED, errors.EXIT_FLAGS, 'PodFailed', 'PodEvicted']
    assert volcano['minAvailable'] == sum(task['replicas'] for task in volcano['tasks'] if task['name'] != 'evaluator')
    tfjob = next(each['spec'] for each in manifests.load(KUBERNETES / 'tfjob') if each['kind'] == 'TFJob')
    assert {replica['restartPolicy'] for replica in tfjob['tfReplicaSpecs'].values()} == {'ExitCode'}


def test_a_tfjob_takes_the_code_of_a_lost_cluster_for_a_reason_to_start_again():
    if errors.EXIT_RETRY < 128:
        pytest.skip(f'the code is {errors.EXIT_RETRY}, which a TFJob takes for the end')
    assert errors.EXIT_RETRY == 138 and '138' in (KUBERNETES / 'volcano' / 'job.yaml').read_text()


def test_the_image_takes_what_it_needs_and_nothing_else():
    ignored = (ROOT / '.dockerignore').read_text().split()
    copied = {word for line in re.findall(r'^COPY (?!--from)(.*)$', DOCKERFILE, re.MULTILINE)
              for word in line.split()[:-1]}
    assert ignored[ignored.index('*') + 1:] and copied == {name[1:] for name in ignored if name.startswith('!')}
    assert json.loads(re.search('^ENTRYPOINT (.*)$', DOCKERFILE, re.MULTILINE)[1])[0] == 'tini'
