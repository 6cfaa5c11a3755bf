# The commands of this repository. `make help` lists them; CI calls only these.

# Built once for tests, image and `cargo run`: one target (see .cargo/config.toml), one profile.
CARGO ?= cargo
PROFILE := --release --locked
TARGET := x86_64-unknown-linux-musl
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
OUT := $(CARGO_TARGET_DIR)/$(TARGET)/release
CACHE := $(or $(SEGMENTRY_CACHE),$(HOME)/.cache/segmentry)
RUNNER := CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUNNER
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE ?= localhost/segmentry:$(VERSION)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help setup tools fmt lint test unit operator crds image e2e clean-cache

help: ## List the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## Install Debian packages and the Rust target that the build and the tests need (root or sudo)
	$(SUDO) apt-get update -q
	$(SUDO) apt-get install -y -q --no-install-recommends musl-tools etcd-server openssl unzip curl util-linux mount iproute2 procps \
		containerd runc containernetworking-plugins nftables iptables conntrack strace
	command -v npm >/dev/null || $(SUDO) apt-get install -y -q --no-install-recommends npm
	rustup target add $(TARGET)

tools: ## Build or fetch Kubernetes, kubectl and helm for the tests, into $SEGMENTRY_CACHE
	$(CARGO) run $(PROFILE) -q -p segmentry-testbed --bin segmentry-bed -- tools --node

fmt: ## Format all sources
	$(CARGO) fmt --all

lint: ## Check formatting and lints; any warning is an error
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(PROFILE) --workspace --lib --bins --tests --test operator --test e2e -- -D warnings

test: unit operator ## All tests but e2e

unit: ## Unit, property, contract and kill tests, manifests and chart on a real control plane
	$(CARGO) test $(PROFILE) --workspace

operator: ## Operator flows on a real control plane with real node processes
	$(CARGO) test $(PROFILE) -p segmentry --test operator

e2e: ## A whole node (kubelet, containerd) and the product's image in it; needs root
	$(CARGO) build $(PROFILE) -p segmentry-testbed --bins
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" $(RUNNER)="$(OUT)/segmentry-bed isolate --" \
		$(CARGO) test $(PROFILE) -p segmentry-testbed --test node -p segmentry --test e2e -- --nocapture

crds: ## Generate crds/ (and the chart's copy) from the types in src/api
	$(CARGO) run $(PROFILE) -q --bin segmentry -- crds --output crds
	rm -rf charts/segmentry/files/crds && cp -r crds charts/segmentry/files/crds

image: ## Build the container image as an OCI archive, without a container engine
	$(CARGO) build $(PROFILE) -p segmentry -p segmentry-testbed --bins
	$(OUT)/segmentry-bed image --program $(OUT)/segmentry --reference $(IMAGE) --output $(OUT)/segmentry-image.tar

clean-cache: ## Remove what the tests have built and fetched outside of the clone
	rm -rf "$(CACHE)"
