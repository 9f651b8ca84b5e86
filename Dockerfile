# ddpsched on CPUs. compose.yaml names what it runs: docker compose run --rm demo
FROM python:3.11-slim

# make for the commands, ip and tc for the link between two hosts
RUN apt-get update && apt-get install --yes --no-install-recommends git iproute2 make util-linux \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /ddpsched
COPY constraints.txt ./
# the build without CUDA, of the version that constraints.txt pins
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/ddpsched \
    && /opt/ddpsched/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"

COPY . .
RUN make VENV=/opt/ddpsched /opt/ddpsched/installed

ENTRYPOINT ["make", "VENV=/opt/ddpsched"]
CMD ["demo"]
