# ddpsched on CPUs. compose.yaml names what it runs: docker compose run --rm demo
FROM python:3.11-slim

# make for the commands, ip and tc for the link between two hosts
RUN apt-get update && apt-get install --yes --no-install-recommends git iproute2 make util-linux \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /ddpsched
# an index with builds of torch without CUDA makes the image smaller: docker compose build --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
COPY . .
RUN make VENV=/opt/ddpsched /opt/ddpsched/installed

ENTRYPOINT ["make", "VENV=/opt/ddpsched"]
CMD ["demo"]
