# SPDX-License-Identifier: Apache-2.0
#
# `sudo make demo` and `sudo make test` do their own set-up; everything here is what CI calls, too.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
# Arguments for a command, as in: make test-node ARGS="-k freezer -x"
ARGS ?=
# A caller's Python settings must not reach the tests. Caches that root made go back to the checkout's owner.
CLEAN_ENV = env -u FAIRSCHED_BPF_CACHE -u PYTHONPATH -u PYTHONHOME -u VIRTUAL_ENV
OWN = status=$$?; scripts/own; exit $$status

.PHONY: help
help: ## Show this help
	@printf 'usage: make TARGET [ARGS="..."]\n\n'
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile
	@printf '\nThe first run as root sets up what it needs (Debian 12, Ubuntu 22.04 or later).\n'

.PHONY: demo
demo: root setup-run ## Fair shares on a simulated GPU, in a minute (root)
	@exec $(CLEAN_ENV) PYTHONDONTWRITEBYTECODE=1 $(BIN)/fairsched demo $(ARGS)

.PHONY: test
test: lint typecheck setup-vm ## Linters, types, unit and node tests (root)
	@$(CLEAN_ENV) scripts/test $(or $(REST),none) $(ARGS); $(OWN)

.PHONY: test-all
test-all: ## The same with all that is long, and other kernels (root)
	@$(MAKE) test REST=all && $(MAKE) test-vm-all

.PHONY: test-vm
test-vm: setup-vm ## tests/vm under KERNEL=5.10, 6.1, 6.12 or 7.2 (root)
	@$(CLEAN_ENV) $(BIN)/python scripts/vm/run.py $(or $(KERNEL),6.1) $(ARGS); $(OWN)

.PHONY: test-vm-all
test-vm-all: setup-vm ## The same under all four; docs/support-matrix.md (root)
	@$(CLEAN_ENV) $(BIN)/python scripts/vm/matrix.py --run $(ARGS); $(OWN)

.PHONY: test-vm-rungs
test-vm-rungs: setup-vm ## What it sees and holds with by kernel and boot (root)
	@$(CLEAN_ENV) $(BIN)/python scripts/vm/matrix.py --rungs $(ARGS); $(OWN)

.PHONY: test-k8s
test-k8s: ## tests/k8s on a real Kubernetes; after setup-k8s (root)
	@$(CLEAN_ENV) FAIRSCHED_REQUIRE_K8S=1 $(BIN)/python -m pytest tests/k8s $(ARGS); $(OWN)

.PHONY: test-k8s-guest
test-k8s-guest: setup-vm ## A node of cgroup v2 alone and systemd's cgroups (root)
	@$(CLEAN_ENV) $(BIN)/python scripts/vm/run.py $(or $(KERNEL),6.1)+systemd $(ARGS); $(OWN)

.PHONY: test-unit
test-unit: setup ## The tests that need no root
	@$(CLEAN_ENV) $(BIN)/python -m pytest tests/unit $(ARGS); $(OWN)

.PHONY: test-node
test-node: setup ## Real cgroups and eBPF, simulated GPU (root)
	@$(CLEAN_ENV) $(BIN)/python -m pytest tests/node $(ARGS); $(OWN)

.PHONY: mutants
mutants: setup ## Break guards, one line each: does a test fail? (root)
	@$(CLEAN_ENV) $(BIN)/python -B scripts/mutants.py $(ARGS); $(OWN)

.PHONY: lint
lint: setup ## Check the style of Python, C and shell
	@$(CLEAN_ENV) scripts/lint; $(OWN)

.PHONY: typecheck
typecheck: setup ## Check the types (mypy, strict)
	@$(CLEAN_ENV) $(BIN)/mypy; $(OWN)

.PHONY: format
format: setup ## Format the Python and C sources in place
	@$(CLEAN_ENV) scripts/lint --fix; $(OWN)

.PHONY: bench-core
bench-core: setup ## Fairness, accounting error, overhead (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.core $(ARGS); $(OWN)

.PHONY: bench-quick
bench-quick: setup ## Fairness on two scenarios, 2 minutes (root)
	@$(CLEAN_ENV) $(BIN)/python benchmarks/fairness.py --suite quick $(ARGS); $(OWN)

.PHONY: bench
bench: setup ## Every scenario, two seeds, rivals on the headlines (root)
	@$(CLEAN_ENV) $(BIN)/python benchmarks/fairness.py --suite bench $(ARGS); $(OWN)

.PHONY: bench-rungs
bench-rungs: setup ## Every scenario on other accounts and brakes (root)
	@$(CLEAN_ENV) $(BIN)/python benchmarks/fairness.py --suite rungs $(ARGS); $(OWN)

.PHONY: bench-full
bench-full: setup ## The same with five seeds; hours (root)
	@$(CLEAN_ENV) $(BIN)/python benchmarks/fairness.py --suite full $(ARGS); $(OWN)

.PHONY: bench-robust
bench-robust: setup ## GPUs and mixes drawn at random, an hour (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.robustness $(ARGS); $(OWN)

.PHONY: bench-scale
bench-scale: setup ## Ticks, CPU and memory with up to 1,000 tenants (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.scale $(ARGS); $(OWN)

.PHONY: bench-scrape
bench-scrape: setup ## The exporter: a scrape's time, attacked, its truth (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.scrape $(ARGS); $(OWN)

.PHONY: bench-ioctl
bench-ioctl: setup ## Cost of seeing the driver's ioctls (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.cost ioctl $(ARGS); $(OWN)

.PHONY: bench-pid-view
bench-pid-view: setup ## Cost of rewriting a process list (root)
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks.cost pid-view $(ARGS); $(OWN)

.PHONY: doctor
doctor: setup-run ## Say what this host can do, and why
	@exec $(CLEAN_ENV) PYTHONDONTWRITEBYTECODE=1 $(BIN)/fairsched doctor $(ARGS)

.PHONY: root
root: # before a minute of set-up, not after it
	@[ "$$(id -u)" -eq 0 ] || { echo "make: needs root. Run: sudo make $(MAKECMDGOALS)" >&2; exit 3; }

.PHONY: setup
setup: ## Install packages (root) and .venv
	@scripts/setup dev

.PHONY: setup-run
setup-run: # the smaller set-up: what `demo` and `doctor` need
	@scripts/setup run

.PHONY: setup-vm
setup-vm: # what test-vm needs besides: qemu, busybox, runc
	@scripts/setup vm

.PHONY: setup-k8s
setup-k8s: ## Build Kubernetes and its parts from Go modules (root)
	@scripts/setup k8s
	@$(CLEAN_ENV) $(BIN)/python -B scripts/k8s/build.py $(ARGS)

.PHONY: setup-numba
setup-numba: ## Install numba-cuda (0.8 GB): a real client for tests
	@scripts/setup numba

.PHONY: install-service
install-service: ## Install or upgrade the systemd service (root)
	@scripts/install-service install

.PHONY: rollback-service
rollback-service: ## Back to the release before the last install (root)
	@scripts/install-service rollback

.PHONY: uninstall-service
uninstall-service: ## Stop it, thaw everything, remove it (root)
	@scripts/install-service uninstall

.PHONY: clean
clean: ## Remove .venv, caches and build results
	@rm -rf .venv .venv-numba .setup.log build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
