// Command build-kube builds the Kubernetes programs that the integration tests
// run against: etcd, kube-apiserver, kubectl and the like, Helm, h2spec, and the clients
// in other languages that come from elsewhere. Only what is missing is built. The directory they are in is printed on stdout.
//
//	go run ./cmd/build-kube
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
	if err := kubebin.BuildHelm(ctx, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "build-kube: %v\n", err)
		os.Exit(1)
	}
	if err := kubebin.BuildH2spec(ctx, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "build-kube: %v\n", err)
		os.Exit(1)
	}
	// Whoever has no npm can run all other tests.
	if _, err := exec.LookPath("npm"); err != nil && os.Getenv("CI") == "" {
		fmt.Fprintf(os.Stderr, "build-kube: no JavaScript client: %v\n", err)
	} else if err := kubebin.InstallJavaScript(ctx, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "build-kube: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
