package cli

import (
	"context"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
)

// runModule is the process that a PKCS#11 library runs in.
func runModule(_ context.Context, _ *world, _ *options) error { return daemon.Module() }
