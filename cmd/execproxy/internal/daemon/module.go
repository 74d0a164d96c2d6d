package daemon

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/execproxy/execproxy/signer/pkcs11/module"
)

// ModuleCommand is the hidden command by which a proxy runs a PKCS#11 library.
const ModuleCommand = "pkcs11-module"

// Module is the process that a PKCS#11 library runs in. Whoever started it speaks
// with it over its standard input and output, and ends it by closing the input.
func Module() error {
	if fi, err := os.Stdin.Stat(); err != nil || fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return fmt.Errorf("%q is execproxy's own way to run a PKCS#11 library; name the library with --pkcs11-module", ModuleCommand)
	}
	if err := harden(true); err != nil { // it will know the PIN
		return err
	}
	// A Ctrl-C is for the program at the terminal, a SIGTERM for the proxy, which
	// may need signatures until it has drained.
	signal.Ignore(append([]os.Signal{os.Interrupt, syscall.SIGTERM}, hangup...)...)
	in, out, err := takeStdio()
	if err != nil {
		return fmt.Errorf("keeping standard output from the library: %w", err)
	}
	return module.Serve(in, out)
}
