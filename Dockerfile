# docker build -t ingestd .
# docker run -v /etc/ingestd:/etc/ingestd:ro -v /var/log:/var/log:ro -v ingestd:/var/lib/ingestd ingestd

FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /source
RUN python -m venv /opt/ingestd && /opt/ingestd/bin/pip install --no-cache-dir /source
# An image without the compiled loops would work, some fifty times slower.
RUN cd / && /opt/ingestd/bin/python -c "from ingestd.records.loops import COMPILED; assert COMPILED"

FROM python:3.13-slim
COPY --from=build /opt/ingestd /opt/ingestd
RUN useradd --system --no-create-home ingestd && install --directory --owner=ingestd --mode=0700 /var/lib/ingestd
USER ingestd
VOLUME /var/lib/ingestd
EXPOSE 9464
# Inside a container "127.0.0.1" reaches nobody else: for scrapes from outside, [daemon] http = "0.0.0.0:9464".
HEALTHCHECK --start-period=60s CMD ["/opt/ingestd/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9464/healthz', timeout=5)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/ingestd/bin/ingestd"]
CMD ["run", "/etc/ingestd/ingestd.toml"]
