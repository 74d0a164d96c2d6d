package lockfile_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/execproxy/execproxy/lockfile"
)

// A client takes a lock and lets it go; the proxy that it started sees both. Here the
// two are one process.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The client, before it runs the plugin.
	lock, err := lockfile.Create(filepath.Join(dir, "lock"))
	if err != nil {
		log.Fatal(err)
	}

	// The proxy, with the path from spec.lockFilePath.
	parent, err := lockfile.Open(lock.Path())
	if err != nil {
		log.Fatal(err)
	}
	defer parent.Close()
	fmt.Println("the client lives")

	// The client again. If it were killed, the same would happen.
	if err := lock.Unlock(); err != nil {
		log.Fatal(err)
	}

	if err := parent.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the client is gone")
	// Output:
	// the client lives
	// the client is gone
}
