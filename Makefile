# `make help` lists the targets. Needed: Go as in go.mod, and gcc for the race detector.

GO       ?= go
FUZZTIME ?= 10s
BENCH    ?=

# All that `make cross` builds and vets.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

BIN         := bin/execproxy
INTEGRATION := tests/integration
# Two jobs at once keep two cores busy while one of them links or waits; the output of each stays in one piece.
SPLIT := $(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.DEFAULT_GOAL := help
.PHONY: help build test checks unit integration kube lint vet staticcheck format cross demo bench figures fuzz cover docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## the binary, bin/execproxy
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN) ./cmd/execproxy

test: ## everything: set-up, lint, cross builds, unit tests, integration tests
	@$(SPLIT) kube checks
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory integration

# Nothing here measures time, so that it may share the machine with a long build.
checks: lint cross

unit: ## unit tests under the race detector, import rules among them
	$(GO) test -race -timeout 10m ./...

integration: kube ## the built binary against real etcd, kube-apiserver, kubectl
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) test -count=1 -timeout 20m ./...

kube: ## build the Kubernetes programs of the integration tests into ~/.cache, where they are missing
	@cd $(INTEGRATION) && $(GO) run ./cmd/build-kube

lint: format vet staticcheck ## gofmt, go vet, staticcheck

format:
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted, run gofmt -w:"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) vet ./...

staticcheck:
	$(GO) tool staticcheck ./...
	cd $(INTEGRATION) && "$$(cd $(CURDIR) && $(GO) tool -n staticcheck)" ./...

cross: ## build and vet for every platform
	@set -e; for p in $(PLATFORMS); do \
		echo "cross $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build ./...; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet ./...; \
	done

demo: build ## the whole exchange on this machine, each step with its time
	$(BIN) demo

bench: build kube ## direct, execproxy and kubectl proxy side by side; flags in BENCH='-rounds 3'
	cd $(INTEGRATION) && $(GO) run ./bench -execproxy ../../$(BIN) $(BENCH)

figures: build kube ## run the bench on a quiet machine and put its figures into docs/performance.md
	cd $(INTEGRATION) && $(GO) run ./bench -execproxy ../../$(BIN) $(BENCH) > $(CURDIR)/bin/figures.md
	@{ sed '/<!-- bench:begin -->/q' docs/performance.md; echo; cat bin/figures.md; echo; sed -n '/<!-- bench:end -->/,$$p' docs/performance.md; } > bin/performance.md
	@mv bin/performance.md docs/performance.md

fuzz: ## every fuzz target for FUZZTIME (10s)
	@set -e; find . -path ./$(INTEGRATION) -prune -o -name '*_test.go' -exec grep -lE '^func Fuzz' {} + | sort | while read -r f; do \
		for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$f); do \
			echo "fuzz $$(dirname $$f) $$t"; \
			$(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) $$(dirname $$f) </dev/null; \
		done; \
	done

cover: ## coverage of the unit tests, cover.html
	$(GO) test -coverprofile=cover.out -coverpkg=./... ./...
	$(GO) tool cover -html=cover.out -o cover.html
	@$(GO) tool cover -func=cover.out | tail -1

clean: ## what make built here; ~/.cache stays
	rm -rf bin cover.out cover.html

docs: build ## the README's table of flags and the manual page, from the command table
	@{ sed '/<!-- flags:begin -->/q' README.md; echo; $(BIN) docs flags; echo; sed -n '/<!-- flags:end -->/,$$p' README.md; } > README.md.new
	@mv README.md.new README.md
	$(BIN) docs man > docs/execproxy.1
