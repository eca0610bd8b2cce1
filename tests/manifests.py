"""Reads deploy/kubernetes as `kubectl kustomize` does, as far as its files need it, and checks every key by name."""

import json
import pathlib

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'deploy' / 'kubernetes'
KUSTOMIZE = {'apiVersion', 'kind', 'resources', 'components', 'configMapGenerator', 'generatorOptions', 'images',
             'patches'}


def load(folder: pathlib.Path, resources: list[dict] | None = None) -> list[dict]:
    """The resources of a folder with a kustomization.yaml. resources: what a component is applied to."""
    kustomization = yaml.safe_load((folder / 'kustomization.yaml').read_text())
    if unknown := set(kustomization) - KUSTOMIZE:
        raise ValueError(f'{folder}: {unknown}')
    found = list(resources or ())
    for name in kustomization.get('resources', ()):
        path = folder / name
        found += load(path) if path.is_dir() else documents(path)
    for generator in kustomization.get('configMapGenerator', ()):
        found = _with_config_map(found, folder, generator)
    for patch in kustomization.get('patches', ()):
        _apply(patch, found)
    for name in kustomization.get('components', ()):
        found = load(folder / name, found)
    for image in kustomization.get('images', ()):
        for container in (part for template in templates(found).values() for part in template['spec']['containers']):
            if container['image'] == image['name']:
                container['image'] = f'{image["newName"]}:{image["newTag"]}'
    return found


def documents(path: pathlib.Path) -> list[dict]:
    """The resources in one file, each a value of its own whatever the anchors."""
    found = []
    for document in yaml.safe_load_all(path.read_text()):
        found += document['items'] if document['kind'] == 'List' else [document]
    return json.loads(json.dumps(found))


def _with_config_map(found: list[dict], folder: pathlib.Path, generator: dict) -> list[dict]:
    data = {name: (folder / name).read_text() for name in generator.get('files', ())}
    data |= dict(literal.split('=', 1) for literal in generator.get('literals', ()))
    there = [each for each in found if each['kind'] == 'ConfigMap' and each['metadata']['name'] == generator['name']]
    assert bool(there) == (generator.get('behavior') == 'replace'), generator
    return [*(each for each in found if each not in there),
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': generator['name']}, 'data': data}]


def _apply(patch: dict, found: list[dict]) -> None:
    target = patch['target']
    for each in found:
        group = each['apiVersion'].rpartition('/')[0]
        if each['kind'] == target['kind'] and target.get('group', group) == group:
            for step in yaml.safe_load(patch['patch']):
                assert step['op'] == 'replace'
                *way, last = step['path'].strip('/').split('/')
                place = each
                for key in way:
                    place = place[int(key) if isinstance(place, list) else key]
                key = int(last) if isinstance(place, list) else last
                place[key]  # As kustomize: only what is there can be replaced.
                place[key] = json.loads(json.dumps(step['value']))


def templates(resources: list[dict]) -> dict[str, dict]:
    """Name of the pods' task, in small letters -> their template, of all jobs."""
    found = {}
    for each in resources:
        spec = each.get('spec', {})
        if each['kind'] == 'TFJob':
            found |= {name.lower(): replica['template'] for name, replica in spec['tfReplicaSpecs'].items()}
        elif each['apiVersion'].startswith('batch.volcano.sh'):
            found |= {task['name']: task['template'] for task in spec['tasks']}
        elif each['kind'] == 'Job':
            found[each['metadata']['name'].rpartition('-')[2]] = spec['template']
    return found


def config_map(resources: list[dict], name: str) -> dict[str, str]:
    """The data of a ConfigMap."""
    return next(each['data'] for each in resources
                if each['kind'] == 'ConfigMap' and each['metadata']['name'] == name)


# Every key that our manifests use, and the type of its value: a mistyped one is not in the list. Written after the API
# reference of Kubernetes and the types of the operators; '*' stands for any name.
_TEXTS = {'*': str}
_POD = {
    'restartPolicy': str, 'subdomain': str, 'terminationGracePeriodSeconds': int, 'automountServiceAccountToken': bool,
    'enableServiceLinks': bool, 'securityContext': {
        'runAsNonRoot': bool, 'runAsUser': int, 'runAsGroup': int, 'fsGroup': int, 'fsGroupChangePolicy': str,
        'seccompProfile': {'type': str}},
    'volumes': [{'name': str, 'persistentVolumeClaim': {'claimName': str, 'readOnly': bool}, 'configMap': {'name': str},
                 'emptyDir': {'sizeLimit': str}}],
    'containers': [{
        'name': str, 'image': str, 'args': [str], 'env': [{'name': str, 'value': str}],
        'envFrom': [{'configMapRef': {'name': str}}], 'ports': [{'name': str, 'containerPort': int}],
        'resources': {'requests': _TEXTS, 'limits': {'cpu': str, 'memory': str, 'nvidia.com/gpu': int}},
        'securityContext': {'allowPrivilegeEscalation': bool, 'readOnlyRootFilesystem': bool,
                            'capabilities': {'drop': [str]}},
        'volumeMounts': [{'name': str, 'mountPath': str, 'readOnly': bool}]}]}
_TEMPLATE = {'metadata': {'labels': _TEXTS, 'annotations': _TEXTS}, 'spec': _POD}
_PEERS = [{'podSelector': {'matchLabels': _TEXTS}}]
_PORTS = [{'protocol': str, 'port': int}]
_SPECS = {
    'kubeflow.org/v1 TFJob': {
        'runPolicy': {'cleanPodPolicy': str, 'activeDeadlineSeconds': int, 'ttlSecondsAfterFinished': int},
        'tfReplicaSpecs': {name: {'replicas': int, 'restartPolicy': str, 'template': _TEMPLATE}
                           for name in ('PS', 'Chief', 'Worker', 'Evaluator')}},
    'batch.volcano.sh/v1alpha1 Job': {
        'schedulerName': str, 'queue': str, 'minAvailable': int, 'maxRetry': int, 'ttlSecondsAfterFinished': int,
        'plugins': {'svc': [str], 'tensorflow': [str]},
        'policies': [{'exitCode': int, 'event': str, 'action': str}],
        'tasks': [{'name': str, 'replicas': int, 'minAvailable': int, 'template': _TEMPLATE}]},
    'batch/v1 Job': {
        'completionMode': str, 'completions': int, 'parallelism': int, 'backoffLimit': int,
        'activeDeadlineSeconds': int, 'ttlSecondsAfterFinished': int, 'podReplacementPolicy': str,
        'podFailurePolicy': {'rules': [{'action': str, 'onPodConditions': [{'type': str, 'status': str}],
                                        'onExitCodes': {'containerName': str, 'operator': str, 'values': [int]}}]},
        'template': _TEMPLATE},
    'v1 Service': {'clusterIP': str, 'publishNotReadyAddresses': bool, 'selector': _TEXTS,
                   'ports': [{'name': str, 'port': int}]},
    'v1 PersistentVolumeClaim': {'accessModes': [str], 'resources': {'requests': _TEXTS}},
    'networking.k8s.io/v1 NetworkPolicy': {
        'podSelector': {'matchLabels': _TEXTS}, 'policyTypes': [str], 'ingress': [{'from': _PEERS, 'ports': _PORTS}],
        'egress': [{'to': _PEERS, 'ports': _PORTS}]}}


def wrong_keys(resource: dict) -> list[str]:
    """Where a resource has a key that is not known, or a value of another type."""
    kind = f'{resource["apiVersion"]} {resource["kind"]}'
    shape = {'apiVersion': str, 'kind': str, 'metadata': {'name': str},
             **({'data': _TEXTS} if kind == 'v1 ConfigMap' else {'spec': _SPECS.get(kind, {})})}
    return list(_differences(resource, shape, kind))


def _differences(value, shape, where: str):
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f'{where} is no object'
            return
        for key, part in value.items():
            if key not in shape and '*' not in shape:
                yield f'{where}.{key} is not known'
            else:
                yield from _differences(part, shape.get(key, shape.get('*')), f'{where}.{key}')
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f'{where} is no list'
            return
        for number, part in enumerate(value):
            yield from _differences(part, shape[0], f'{where}[{number}]')
    elif type(value) is not shape:
        yield f'{where} is {value!r}, no {shape.__name__}'
