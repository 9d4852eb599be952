# Needs Go, git and make. Go builds all other tools into bin/, once, from the modules in
# hack/ that pin their versions.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Every directory here is a module; there is no go.work.
export GOWORK := off
# Nothing here needs cgo but the race detector. With it, packages would be compiled twice:
# for vet and tests with cgo, and for all programs without.
export CGO_ENABLED := 0
MODULES := $(patsubst %/go.mod,%,$(wildcard ./go.mod devcluster/go.mod test/go.mod cmd/kubectl-atoll/go.mod hack/chart/go.mod hack/alerts/go.mod hack/tools/go.mod hack/golangci/go.mod))
# hack/tools and hack/golangci pin tools and hold no code.
CODE_MODULES := $(filter-out hack/tools hack/golangci,$(MODULES))

# The race detector needs a C compiler. RACE= turns it off.
RACE ?= $(shell unset CGO_ENABLED; if [ "$$(go env CGO_ENABLED)" = 1 ] && command -v "$$(go env CC)" >/dev/null; then echo -race; fi)
race-env = $(if $(RACE),CGO_ENABLED=1)
# The version of Kubernetes on which tests, demo, up, soak and bench run: 1.36, 1.35 or 1.34.
KUBERNETES ?=
export ATOLL_KUBERNETES ?= $(KUBERNETES)
# More flags for go test: make test TESTFLAGS='-run TestWalls -v'.
TESTFLAGS ?=
# The flag that leaves the tests of internal/testing/tier to make test-all. make test sets it
# for its parts; make e2e SHORT=-short runs the part as make test does.
SHORT ?=
# Lint has vet's checks. Without tables for debuggers, tests are linked faster.
QUICK := -vet=off -ldflags=-w
# go test caches results by the files of a module. Some tests read the chart or build
# programs outside of their module.
UNCACHED := -count=1
# The image that make image builds and make manifest installs. -push needs a registry in it.
IMAGE ?= atoll-k8s/atoll-manager:$(shell awk '$$1 == "appVersion:" { gsub(/"/, "", $$2); print $$2 }' charts/atoll/Chart.yaml)
# The package that make mutate changes; unset, all pure ones.
PKG ?=
# The packages of make bench and make demo, relative to test/; ARGS are their flags.
BENCH_PKG ?= ./perf
DEMO_PKG ?= ./demo
ARGS ?=
# The scene that make demo shows after the first example: rollout, scale, early, pools,
# capacity, gangs, offline or pool.
SCENE ?=
export SCENE
# The command that builds etcd, kube-apiserver and the other programs of the devcluster,
# run in devcluster/.
DEVCLUSTER_BIN ?= go run ./cmd/devcluster build

# The names of tools contain their version and Go's: a linter that was built with an older
# Go cannot read newer code.
GO_VERSION := $(shell go env GOVERSION)
version-of = $(shell awk '$$1 == "$(1)" && $$2 ~ /^v/ { print $$2; exit } $$2 == "$(1)" && $$3 ~ /^v/ { print $$3; exit }' $(2))
CONTROLLER_GEN := bin/controller-gen-$(call version-of,sigs.k8s.io/controller-tools,hack/tools/go.mod)-$(GO_VERSION)
GOTESTSUM := bin/gotestsum-$(call version-of,gotest.tools/gotestsum,hack/tools/go.mod)-$(GO_VERSION)
# gotestsum runs go test and keeps its events for make test-times.
gotest = $(CURDIR)/$(GOTESTSUM) --format pkgname --jsonfile $(CURDIR)/dist/test/$(1).json --
# golangci-lint with the plugin kube-api-linter.
GOLANGCI_LINT := bin/golangci-lint-kube-api-linter-$(call version-of,github.com/golangci/golangci-lint/v2,hack/golangci/go.mod)-$(GO_VERSION)

##@ Every day

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: verify
verify: ## Regenerate, then run all checks that need no cluster, two at a time; CI runs this first.
	@$(MAKE) --no-print-directory -j2 lint check-generated fmt paths tidy chart
	@echo "verify: ok"

# The parts of both tiers, in the order in which they begin.
PARTS := e2e e2e-nodes unit devcluster-test e2e-hub

.PHONY: test
test: $(GOTESTSUM) ## Run the tests that prove each promise, also on real control planes (Go builds them the first time: some minutes); CI runs this.
	@MAKE='$(MAKE)' hack/test.sh -short $(PARTS)
	@echo "test: ok"

.PHONY: test-all
test-all: $(GOTESTSUM) ## Run all tests, and print one line of result with the commit and the machine.
	@MAKE='$(MAKE)' TESTFLAGS='$(TESTFLAGS)' hack/test.sh $(PARTS) ui-test alerts-test
	@echo "test-all: ok"

.PHONY: test-times
test-times: $(GOTESTSUM) ## Print which tests of the last make test or make test-all took longest.
	@hack/test-times.sh $(CURDIR)/$(GOTESTSUM)

.PHONY: mutate
mutate: ## Change the pure packages in small ways and count which changes no test notices (half an hour): PKG names one package.
	go run ./hack/mutate $(or $(PKG),$$(go list -f '{{if .TestGoFiles}}{{.Dir}}{{end}}' ./internal/domain/... ./internal/seats))

.PHONY: fuzz
fuzz: ## Send random input to parsers, and random objects to a real control plane, for some time each: FOR=10m.
	hack/fuzz.sh $(or $(FOR),1m)

.PHONY: bench
bench: ## Run the benchmarks: ARGS are passed to the benchmark program.
	cd test && go run $(BENCH_PKG) $(ARGS)

.PHONY: soak
soak: devcluster-bin ## Cut links and kill hubs and kubelets at random, and check that nothing is lost: FOR=1h, SEED=n repeats a run.
	cd test && go run ./soak -for $(or $(FOR),1h) $(if $(SEED),-seed $(SEED)) $(ARGS)

.PHONY: matrix
matrix: devcluster-bin ## Make each failure of a pool on real nodes, and write into docs/pools-failures.md what it does: more than an hour.
	cd test && MATRIX=$(CURDIR)/docs/pools-failures.md go test $(UNCACHED) -v -timeout 180m $(TESTFLAGS) -run 'TestFailureMatrix$(if $(ROW),/$(ROW))' ./nodes

.PHONY: demo
demo: kubectl-atoll ## Show the example on a cluster of simulated nodes; SCENE=rollout|scale|early|pools|capacity|gangs|offline|pool|governance shows one more scene.
	cd test && go run $(DEMO_PKG) $(ARGS)

.PHONY: up
up: kubectl-atoll ## Start a cluster with Atoll to try things on; it runs until make down. ARGS=-form=Isolated selects another form, ARGS=-kubernetes=1.34 another version, ARGS=-real-nodes=3 nodes with containers.
	cd test && go run ./playground $(ARGS)

.PHONY: down
down: ## Stop the cluster of make up.
	cd test && go run ./playground -down

.PHONY: build
build: kubectl-atoll ## Build the programs into bin/.
	go build -trimpath -o bin/ ./cmd/...

.PHONY: kubectl-atoll
kubectl-atoll: ## Build bin/kubectl-atoll, what people ask: docs/kubectl-atoll.md.
	cd cmd/kubectl-atoll && go build -trimpath -o $(CURDIR)/bin/ . && cp kubectl_complete-atoll $(CURDIR)/bin/

.PHONY: image
image: ## Build the image of atoll-manager, atoll-hub and atoll-coordinator into a tar file in dist/: IMAGE is its name; ARGS=-push pushes it instead.
	@cd hack/chart && go run ./cmd/image -source $(CURDIR) -image '$(IMAGE)' $(ARGS)

.PHONY: manifest
manifest: ## Render the chart into dist/install.yaml: IMAGE is the image of atoll-manager, ARGS may contain -set key=value.
	cd hack/chart && go run ./cmd/manifest -o $(CURDIR)/dist/install.yaml -image '$(IMAGE)' $(ARGS)

.PHONY: release
release: ## Make all files of a release in dist/release: programs, image, chart, install.yaml, krew's manifest, checksums, SBOM. IMAGE is the image's name.
	@cd hack/chart && go run ./cmd/release -source $(CURDIR) -image '$(IMAGE)' $(ARGS)

.PHONY: generate
generate: $(CONTROLLER_GEN) ## Regenerate deepcopy code, CRDs, the manager's role and docs/metrics.md.
	hack/generate.sh $(CONTROLLER_GEN)

##@ Parts of verify

.PHONY: check-generated
check-generated: $(CONTROLLER_GEN) ## Fail if regenerating changes a file (in CI: if the checkout is not clean).
	hack/check-generated.sh $(CONTROLLER_GEN)

.PHONY: vet
vet: ## Run go vet on every module; lint has the same checks.
	@for module in $(CODE_MODULES); do echo "vet $$module"; (cd $$module && go vet ./...); done

.PHONY: fmt
fmt: ## Fail if a Go file is not formatted.
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go' | while read -r file; do [ ! -e "$$file" ] || echo "$$file"; done)); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi

.PHONY: paths
paths: ## Fail if a file has a path of somebody's machine: a home directory is ~.
	@found=0; git grep --untracked -nIE '(^|[^A-Za-z0-9._~}-])/(roo[t]|hom[e]|User[s])(/|$$)' || found=$$?; \
	if [ $$found = 0 ]; then echo "these are paths of a machine: write ~ for the home directory"; exit 1; fi; [ $$found = 1 ]

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint on every module.
	@for module in $(CODE_MODULES); do \
		echo "lint $$module"; (cd $$module && GOGC=200 GOMEMLIMIT=5GiB $(CURDIR)/$(GOLANGCI_LINT) run --allow-serial-runners --config $(CURDIR)/.golangci.yml); done

.PHONY: tidy
tidy: ## Fail if a go.mod or go.sum is not tidy.
	@for module in $(MODULES); do echo "tidy $$module"; (cd $$module && go mod tidy -diff); done

.PHONY: chart
chart: ## Lint the Helm chart, render it and decode the result strictly.
	cd hack/chart && go test $(QUICK) $(UNCACHED) -timeout 30m $(TESTFLAGS) ./...

.PHONY: image-check
image-check: ## Build the image and run its programs from its content, in an empty file system (Linux).
	hack/image-check.sh

##@ Parts of test and test-all

.PHONY: unit
unit: $(GOTESTSUM) ## Run the tests of the root module, and of kubectl-atoll.
	@mkdir -p dist/test
	$(race-env) $(call gotest,unit) $(QUICK) $(RACE) -timeout 15m $(SHORT) $(TESTFLAGS) ./...
	cd cmd/kubectl-atoll && $(call gotest,kubectl) $(QUICK) $(SHORT) $(TESTFLAGS) ./...

.PHONY: race-build
race-build: ## Compile, but do not link, the tests of unit and devcluster-test.
	@for module in . devcluster; do (cd $$module && $(race-env) go list $(RACE) -export -deps -test ./... >/dev/null); done

.PHONY: devcluster-bin
devcluster-bin: ## Build the programs of the devcluster, with progress; needed once on each machine.
	cd devcluster && $(DEVCLUSTER_BIN)

.PHONY: devcluster-test
devcluster-test: devcluster-bin $(GOTESTSUM) ## Run the tests of the devcluster.
	@mkdir -p dist/test
	cd devcluster && $(race-env) $(call gotest,devcluster) $(QUICK) $(RACE) $(UNCACHED) -timeout 30m $(SHORT) $(TESTFLAGS) ./...

.PHONY: e2e
e2e: devcluster-bin $(GOTESTSUM) ## Run the end-to-end tests on real control planes.
	hack/e2e.sh $(CURDIR)/$(GOTESTSUM) $(QUICK) $(UNCACHED) -timeout=60m $(SHORT) $(TESTFLAGS)

.PHONY: e2e-hub
e2e-hub: devcluster-bin $(GOTESTSUM) ## Run the tests of the hub on a real control plane, and those of the programs and helpers in test/.
	@mkdir -p dist/test
	cd test && $(call gotest,e2e-hub) $(QUICK) $(UNCACHED) -timeout 30m $(SHORT) $(TESTFLAGS) $$(go list ./... | grep -v -e '/e2e$$' -e '/attack$$' -e '/nodes$$' -e '/ui$$')

# Without the race detector: under it each step of Helm takes forty seconds and gigabytes.
.PHONY: e2e-nodes
e2e-nodes: devcluster-bin $(GOTESTSUM) ## Run the end-to-end tests on real nodes, where they can run: Linux, root, TUN devices, a C compiler.
	@mkdir -p dist/test
	cd test && $(call gotest,e2e-nodes) $(QUICK) $(UNCACHED) -parallel 3 -timeout 60m $(SHORT) $(TESTFLAGS) ./nodes

.PHONY: ui-test
ui-test: devcluster-bin $(GOTESTSUM) ## Drive the page of kubectl atoll ui in Debian's chromium, where there is one; screenshots go to dist/ui.
	hack/ui-test.sh $(CURDIR)/$(GOTESTSUM) $(QUICK) $(UNCACHED) $(TESTFLAGS)

.PHONY: alerts-test
alerts-test: $(GOTESTSUM) ## Test that each alert of the chart fires, by Prometheus' own language.
	@mkdir -p dist/test
	cd hack/alerts && $(call gotest,alerts) $(QUICK) $(UNCACHED) $(TESTFLAGS) ./...

.PHONY: attack
attack: devcluster-bin ## Attack the ports of an atoll-manager in a cluster on this machine, over the loopback network only: some minutes.
	cd test && go test $(UNCACHED) -v -timeout 20m $(TESTFLAGS) ./attack

##@ Housekeeping

.PHONY: clean
clean: ## Remove bin/ and dist/.
	rm -rf bin dist

$(CONTROLLER_GEN): hack/tools/go.mod hack/tools/go.sum
	hack/build-tool.sh hack/tools sigs.k8s.io/controller-tools/cmd/controller-gen $@

$(GOTESTSUM): hack/tools/go.mod hack/tools/go.sum
	hack/build-tool.sh hack/tools gotest.tools/gotestsum $@

$(GOLANGCI_LINT): hack/golangci/go.mod hack/golangci/go.sum
	hack/build-tool.sh hack/golangci sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter $@
