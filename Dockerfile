# For whoever has a container engine; `make image` builds the same image without one.
# The builder's platform decides the architecture: docker buildx build --platform linux/amd64 .
FROM docker.io/library/rust:1.95-bookworm AS build
RUN apt-get update -q && apt-get install -y -q --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin segmentry \
    && install -D -m 0755 target/x86_64-unknown-linux-musl/release/segmentry /image/segmentry \
    && ln -s /segmentry /image/kubectl-segmentry \
    && mkdir -p /image/etc /image/tmp && chmod 1777 /image/tmp \
    && printf 'root:x:0:0:root:/:/\nsegmentry:x:10001:10001::/:/\n' > /image/etc/passwd

FROM scratch
COPY --from=build /image/ /
USER 10001:10001
ENTRYPOINT ["/segmentry"]
