# syntax=docker/dockerfile:1
# One image for every task of a cluster, and for evaluation, export and TensorBoard: docs/containers.md.
#
#     docker build -t inception-mg .                        with TensorFlow's CUDA libraries (about 7 GB)
#     docker build -t inception-mg --build-arg CUDA= .      for machines without GPUs (about 2 GB)
#     docker run --rm inception-mg scripts/train.py --help
#
# Debian 12 has the Python that constraints.txt is for; any base with apt and python3 from 3.11 on will do.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS packages
ARG CUDA=1
# No versions: the release that BASE is fixes them.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /build/
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --only-binary :all: -c /build/constraints.txt \
    "tensorflow${CUDA:+[and-cuda]}" absl-py h5py numpy Pillow tqdm matplotlib tensorboard

FROM ${BASE}
# No versions: the release that BASE is fixes them.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 1000 inception && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp inception \
 && install -d -o inception -g inception /data /runs
COPY --from=packages /opt/venv /opt/venv
COPY inception_mg /opt/inception-mg/inception_mg
COPY dist /opt/inception-mg/dist
COPY scripts /opt/inception-mg/scripts
COPY pyproject.toml LICENSE README.md /opt/inception-mg/
# Compiled here: where the tasks run, the root is read-only.
RUN /opt/venv/bin/python -m compileall -q /opt/inception-mg
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MPLCONFIGDIR=/tmp/matplotlib
USER 1000:1000
WORKDIR /opt/inception-mg
EXPOSE 2222
# PID 1 has no default action for SIGTERM: tini passes it on, so that the chief saves and ends with 143. It is also the
# parent of whatever a task leaves behind.
ENTRYPOINT ["tini", "--", "python"]
CMD ["scripts/train.py", "--help"]
