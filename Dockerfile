# specbench on NVIDIA GPUs. docs/index.md has the commands.
FROM nvidia/cuda:12.8.1-base-ubuntu24.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Triton compiles its launchers with gcc and Python's headers. The Ubuntu release pins their versions.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/specbench \
    && mkdir --mode=777 /bench /cache

ENV PATH=/opt/specbench/bin:$PATH \
    HF_HOME=/cache/huggingface \
    SPECBENCH_CACHE=/cache/specbench \
    TRITON_CACHE_DIR=/cache/triton

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY specbench specbench
COPY methods methods
COPY datasets datasets
COPY results/published results/published
RUN pip install --no-cache-dir --constraint constraints.txt .

WORKDIR /bench
ENTRYPOINT ["specbench"]
CMD ["doctor"]
