# Everything here needs Go and nothing else beforehand; what a target needs besides, it gets or says how to get.

# staticcheck 2026.2.2 as a module version.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    ?= ./...
TESTFLAGS   ?=
ARGS        ?=
FUZZTIME    ?= 30s

.DEFAULT_GOAL := help
.PHONY: help docs fuzz dev test tools postgres redis versitygw lint format vet staticcheck fmt bench build image clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: ## Run everything in one process with sample endpoints and events (ARGS="--quiet")
	go run ./app/weir dev $(ARGS)

test: tools ## Run all tests with the race detector; they start their own Postgres and Redis (PACKAGES=./inbox TESTFLAGS="-run X")
	go test -race -timeout 20m $(TESTFLAGS) $(PACKAGES)
ifeq ($(PACKAGES),./...)
	go test -race -timeout 10m -tags faults -run Killed ./inbox ./streams
endif

tools: redis postgres versitygw ## Get the servers that the tests start: redis-server, PostgreSQL and versitygw

redis:
	@./deploy/redis.sh

versitygw:
	@./deploy/versitygw.sh

postgres: ## Get PostgreSQL's binaries, if there are none: by apt-get for root on Debian, else into .weir/postgres
	@./deploy/postgres.sh

lint: format vet staticcheck ## Check format, go vet (with and without fault points) and staticcheck

format:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi

vet:
	go vet ./...
	go vet -tags faults ./...

staticcheck:
	go run $(STATICCHECK) ./...

fmt: ## Format all Go files
	gofmt -w $$(git ls-files '*.go')

bench: postgres ## Measure accepts per second on this machine against a private Postgres (ARGS="--vs-naive")
	go run ./app/weir bench $(ARGS)

docs: ## Make docs/providers.md from the adapters' own table
	go run ./app/weir providers --markdown > docs/providers.md.new && mv docs/providers.md.new docs/providers.md

fuzz: ## Run every fuzz target for FUZZTIME (30s) each
	@for package in ./adapters ./adapters/secrets ./app/capture ./app/ingress ./processors; do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
		done; \
	done

build: ## Build bin/weir
	CGO_ENABLED=0 go build -trimpath -o bin/weir ./app/weir

image: ## Build the container image weir:dev
	docker build -f deploy/Dockerfile -t weir:dev .

clean: ## Remove what was built or downloaded here; data of weir dev stays
	rm -rf bin .weir/postgres .weir/bin
