package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// ProgramImage writes the archive of an image that holds one static program, as
// /NAME, to file.
func ProgramImage(file, ref, name, path string) error {
	var l layer
	if err := l.program(name, path); err != nil {
		return err
	}
	data, err := archive(ref, &l, map[string]any{"Entrypoint": []string{"/" + name}, "Env": []string{"PATH=/"}})
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

// Import gives the node an image from an archive.
func (n *Node) Import(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := run(ctx, n.command("ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", file))
	if err != nil {
		return fmt.Errorf("importing %s: %w\n%s", file, err, strings.TrimSpace(out))
	}
	return nil
}

// Run runs a program inside the node, to its end.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	return run(ctx, n.command(args...))
}
