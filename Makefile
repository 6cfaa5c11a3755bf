# The commands of this repository. `make help` lists them; CI calls only these.

# Built once for tests, image and `cargo run`: one target (see .cargo/config.toml), one profile.
CARGO ?= cargo
PROFILE := --release --locked
TARGET := x86_64-unknown-linux-musl
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
OUT := $(CARGO_TARGET_DIR)/$(TARGET)/release
CACHE := $(or $(SEGMENTRY_CACHE),$(HOME)/.cache/segmentry)
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE ?= localhost/segmentry:$(VERSION)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help setup tools fmt lint test unit crds image e2e clean-cache

help: ## List the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## Install Debian packages and the Rust target that the build and the tests need (root or sudo)
	$(SUDO) apt-get update -q
	$(SUDO) apt-get install -y -q --no-install-recommends musl-tools etcd-server openssl unzip curl util-linux mount iproute2 procps \
		containerd runc containernetworking-plugins nftables iptables conntrack npm
	rustup target add $(TARGET)

tools: ## Build or fetch Kubernetes, kubectl and helm for the tests, into $SEGMENTRY_CACHE
	$(CARGO) run $(PROFILE) -q -p segmentry-testbed --bin segmentry-bed -- tools --node

fmt: ## Format all sources
	$(CARGO) fmt --all

lint: ## Check formatting and lints; any warning fails
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(PROFILE) --workspace --all-targets -- -D warnings

test: ## All tests but e2e: unit, property, contract, operator flows and chart on a real control plane
	$(CARGO) test $(PROFILE) --workspace

crds: ## Generate crds/ (and the chart's copy) from the types in src/api
	$(CARGO) run $(PROFILE) -q -- crds --output crds

image: ## Build the container image as an OCI archive, without a container engine
	$(CARGO) build $(PROFILE) -p segmentry -p segmentry-testbed --bins
	$(OUT)/segmentry-bed image --program $(OUT)/segmentry --reference $(IMAGE) --output $(OUT)/segmentry-image.tar

clean-cache: ## Remove what the tests have built and fetched outside of the clone
	rm -rf "$(CACHE)"
