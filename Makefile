# `make help` lists the targets. Needed: Go as in go.mod, gcc for PKCS#11 and for the race detector; what else the
# tests need, they say.

GO       ?= go
FUZZTIME ?= 10s
BENCH    ?=

# All that `make cross` builds and vets.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

# PKCS#11 needs cgo; Go itself turns that off where there is no C compiler. The tags keep everything but the vendor's
# library from asking libc.
CGO   ?= $(shell $(GO) env CGO_ENABLED)
BUILD := $(GO) build -trimpath -ldflags '-s -w' -tags netgo,osusergo

BIN         := bin/execproxy
INTEGRATION := tests/integration
# A module of its own, built as the Kubernetes programs are, so that both share what is compiled.
IMAGES := cd $(INTEGRATION)/imagecredentials && GOFLAGS=-trimpath CGO_ENABLED=0
# Two jobs at once keep two cores busy while one of them links or waits; the output of each stays in one piece.
SPLIT := $(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.DEFAULT_GOAL := help
.PHONY: help build build-static image fips reproducible test checks unit unit-fips integration faults kube lint vet staticcheck format \
	cross demo bench profile figures fuzz cover docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## the binary, bin/execproxy
	@[ "$(CGO)" = 1 ] || echo "make: cgo is off, $(BIN) will have no PKCS#11 (TPM and file keys it has): install gcc, and unset CGO_ENABLED" >&2
	CGO_ENABLED=$(CGO) $(BUILD) -o $(BIN) ./cmd/execproxy

build-static: ## the binary without PKCS#11 and without libc, bin/execproxy-static
	CGO_ENABLED=0 $(BUILD) -o $(BIN)-static ./cmd/execproxy

# The storage is the build's own, so that it needs no rights over anybody else's.
IMAGE := bin/execproxy-image.tar
image: build-static ## a container image of it, $(IMAGE): FROM scratch, needs buildah and no registry
	@command -v buildah >/dev/null || { echo "make: no buildah on this machine: apt-get install buildah" >&2; exit 1; }
	@set -e; t=$$(mktemp -d); b="buildah --storage-driver vfs --root $$t/store --runroot $$t/run"; \
	trap 'rm -rf "$$t"' EXIT; \
	mkdir -p "$$t/c/root/var/lib"; install -d -m 0700 "$$t/c/root/var/lib/execproxy"; install -m 0755 $(BIN)-static "$$t/c/execproxy"; \
	$$b build --quiet --isolation chroot --timestamp 0 -f deploy/Containerfile -t localhost/execproxy:latest "$$t/c"; \
	rm -f $(IMAGE); $$b push --quiet localhost/execproxy:latest docker-archive:$(CURDIR)/$(IMAGE):localhost/execproxy:latest; \
	ls -l $(IMAGE)

fips: ## the binary on Go's certified FIPS 140-3 module, bin/execproxy-fips; runs its demo
	GOFIPS140=certified CGO_ENABLED=$(CGO) $(BUILD) -o $(BIN)-fips ./cmd/execproxy
	@out=$$($(BIN)-fips demo 2>&1) || { echo "$$out"; echo "$(BIN)-fips demo: failed"; exit 1; }

# The second time nothing comes from the cache, or this would compare a file with itself.
reproducible: ## the same source gives the same binary, in whatever directory
	@set -e; t=$$(mktemp -d); trap 'rm -rf "$$t"' EXIT; \
	for d in a another/place; do \
		mkdir -p "$$t/$$d"; tar -c --exclude=./.git --exclude=./bin . | tar -xC "$$t/$$d"; \
		(cd "$$t/$$d" && CGO_ENABLED=$(CGO) $(BUILD) -buildvcs=false -o bin/execproxy ./cmd/execproxy); \
		export GOCACHE="$$t/cache"; \
	done; \
	cmp "$$t/a/bin/execproxy" "$$t/another/place/bin/execproxy" && echo "reproducible: the same binary twice, CGO_ENABLED=$(CGO)"

test: ## everything: set-up, lint, cross builds, unit tests, integration tests
	@$(SPLIT) kube checks
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory unit-fips
	@$(MAKE) --no-print-directory integration

# Nothing here measures time, so that it may share the machine with a long build.
checks: lint cross fips

unit: ## unit tests under the race detector, import rules among them
	$(GO) test -race -timeout 10m ./...

unit-fips: ## the unit tests of keys and TLS with Go's FIPS 140-3 module in force
	GODEBUG=fips140=on $(GO) test -race -timeout 10m ./signer/... ./transport/...

integration: kube ## the built binary against real etcd, kube-apiserver, kubectl
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) test -count=1 -timeout 30m ./...
	$(IMAGES) $(GO) test -count=1 -timeout 15m ./...

# Each fault with its message, the time until requests went through again, and how often a PIN was tried.
faults: kube ## what goes wrong with keys in tokens and TPMs, and what becomes of it
	@mkdir -p bin; cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) test -count=1 -timeout 10m -v \
		-run 'TestTokenGoesAndComes|TestModuleFails|TestTPMRestarts|TestWrongPIN|TestKeyMessages|TestWithoutCGO' . \
		> $(CURDIR)/bin/faults.log 2>&1; code=$$?; \
	sed -nE 's/^ *[a-z]+_test.go:[0-9]+: FAULT /\n/p; s/^ +((recovery|PIN tries|message): )/  \1/p; /^(--- FAIL|ok |FAIL)/p' $(CURDIR)/bin/faults.log; \
	exit $$code

kube: ## build the Kubernetes programs and clients of the integration tests into ~/.cache, where they are missing
	@cd $(INTEGRATION) && $(GO) run ./cmd/build-kube

lint: format vet staticcheck ## gofmt, go vet, staticcheck

format:
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted, run gofmt -w:"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...
	$(GO) vet -tags nopkcs11 ./...
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) vet ./...
	cd $(INTEGRATION)/examples/controller && CGO_ENABLED=0 $(GO) vet ./...
	$(IMAGES) $(GO) vet ./...

staticcheck:
	$(GO) tool staticcheck ./...
	$(GO) tool staticcheck -tags nopkcs11 ./...
	cd $(INTEGRATION) && "$$(cd $(CURDIR) && $(GO) tool -n staticcheck)" ./...
	$(IMAGES) "$$(cd $(CURDIR) && $(GO) tool -n staticcheck)" ./...

cross: ## build and vet for every platform
	@set -e; for p in $(PLATFORMS); do \
		echo "cross $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build ./...; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet ./...; \
	done

demo: build ## the whole exchange on this machine, each step with its time
	$(BIN) demo

bench: build kube ## execproxy beside nginx, haproxy, kubectl proxy and no proxy; flags in BENCH='-quick'
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) run ./bench -execproxy ../../$(BIN) $(BENCH)

# perf needs the symbols that the product is built without.
profile: kube ## where the processor's time goes under a load: make profile BENCH='-only "16 in flight$$" -targets mTLS'
	CGO_ENABLED=$(CGO) $(GO) build -tags netgo,osusergo -o $(BIN)-symbols ./cmd/execproxy
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) run ./bench -execproxy ../../$(BIN)-symbols -profile $(CURDIR)/bin/profile -rounds 1 -time 5s $(BENCH)

figures: build kube ## run the bench on a quiet machine and put its figures into docs/performance.md
	cd $(INTEGRATION) && CGO_ENABLED=0 $(GO) run ./bench -execproxy ../../$(BIN) $(BENCH) > $(CURDIR)/bin/figures.md
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
