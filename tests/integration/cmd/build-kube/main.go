// Command build-kube builds the Kubernetes programs that the integration tests
// run against: etcd, kube-apiserver, kubectl and kube-controller-manager. Only
// what is missing is built. The directory they are in is printed on stdout.
//
//	go run ./cmd/build-kube
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := kubebin.Build(ctx, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "build-kube: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
