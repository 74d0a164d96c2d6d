// Execproxy is an exec credential plugin for Kubernetes clients that answers
// with a private proxy in the place of a credential.
package main

import (
	"os"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/cli"
)

func main() { os.Exit(cli.Main()) }
