# The image of atoll-manager: one static program, a licence, nothing else. Built
# by make image; BuildKit gives TARGETOS and TARGETARCH.
ARG GO_VERSION=1.26

# The compiler runs on the machine that builds, whatever it builds for.
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY hack/build-static.sh hack/
COPY api api
COPY cmd cmd
COPY internal internal
ARG TARGETOS
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH hack/build-static.sh ./cmd/atoll-manager /out/atoll-manager

FROM scratch
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="atoll-manager" \
      org.opencontainers.image.description="Controllers, admission webhooks and scheduler extender of Atoll" \
      org.opencontainers.image.source="https://github.com/atoll-k8s/atoll" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY LICENSE /LICENSE
COPY --from=build /out/atoll-manager /atoll-manager
# A number: kubelets refuse names where runAsNonRoot is asked for.
USER 65532:65532
ENTRYPOINT ["/atoll-manager"]
