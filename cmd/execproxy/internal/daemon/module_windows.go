package daemon

import "os"

// takeStdio: the streams of Go's os package are not those that a library prints to
// on Windows once os.Stdout names another file.
func takeStdio() (in, out *os.File, err error) {
	in, out = os.Stdin, os.Stdout
	os.Stdout = os.Stderr
	return in, out, nil
}
