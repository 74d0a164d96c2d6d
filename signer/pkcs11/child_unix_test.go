//go:build unix

package pkcs11

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
	"github.com/execproxy/execproxy/signer/pkcs11/module"
)

// childVariable makes the test binary play the child, and says which kind of one.
const childVariable = "PKCS11_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(shimDir)
			os.Exit(code)
		}))
	case "module":
		// As the hidden command does: what the library prints is no answer.
		in, out := dup(0), dup(1)
		must(unix.Dup2(2, 1))
		if err := module.Serve(in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "usage": // another program, which was named by mistake
		fmt.Println("usage: something else")
		os.Exit(2)
	case "silent":
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	case "deaf": // says hello, answers nothing, and does not care for the end of its input
		must(wire.Write(os.Stdout, wire.Frame{Kind: wire.KindHello, Body: wire.Magic}))
		select {}
	case "old":
		must(wire.Write(os.Stdout, wire.Frame{Kind: wire.KindHello, Body: []byte("pkcs11\x00")}))
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	case "nocgo", "nonsense":
		must(wire.Write(os.Stdout, wire.Frame{Kind: wire.KindHello, Body: wire.Magic}))
		r := bufio.NewReader(os.Stdin)
		for {
			f, err := wire.Read(r)
			if err != nil {
				os.Exit(0)
			}
			reply := wire.Frame{ID: f.ID, Kind: wire.KindDone, Body: []byte{1, 2, 3}}
			if os.Getenv(childVariable) == "nocgo" {
				reply = wire.Frame{ID: f.ID, Kind: wire.KindFailed, Body: wire.Encode(&wire.Failed{Problem: wire.ProblemNoCGO, Detail: "built without cgo"})}
			}
			must(wire.Write(os.Stdout, reply))
		}
	}
}

func dup(fd int) *os.File {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	must(err)
	return os.NewFile(uintptr(n), "dup")
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}
