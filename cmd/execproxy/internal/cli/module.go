package cli

import (
	"context"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
)

// moduleCommand is the hidden command by which a proxy runs a PKCS#11 library in
// a process of its own.
const moduleCommand = daemon.ModuleCommand

func runModule(_ context.Context, _ *world, _ *options) error { return daemon.Module() }
