package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/credhelper"
)

// maxSecret bounds a password, in bytes; tokens are long.
const maxSecret = 64 << 10

// readPassword reads a file that only its owner can read. It is read each time:
// that is how a rotated password gets here.
func readPassword(path string) (string, error) {
	fail := func(err error) (string, error) {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return "", fmt.Errorf("passwordFile %s: %w", path, err)
	}
	if info, err := os.Stat(path); err != nil {
		return fail(err)
	} else if !info.Mode().IsRegular() { // opening a FIFO would wait for a writer
		return fail(errors.New("not a regular file"))
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat() // of what is read, whatever has that name by now
	switch {
	case err != nil:
		return fail(err)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return fail(fmt.Errorf("others can read it (mode %04o); run chmod 0600", info.Mode().Perm()))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return fail(err)
	}
	password, err := oneLine(data)
	if err != nil {
		return fail(err)
	}
	return password, nil
}

// runCommand has a program print a password.
func runCommand(ctx context.Context, c *Command) (string, error) {
	out, err := credhelper.Run(ctx, c.Command, c.Args, "")
	if err != nil {
		return "", err
	}
	password, err := oneLine(out)
	if err != nil {
		return "", fmt.Errorf("what %s printed: %w", c.Command, err)
	}
	return password, nil
}

// oneLine is a secret's text without the end of its line.
func oneLine(data []byte) (string, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case len(data) > maxSecret:
		return "", fmt.Errorf("more than %d bytes", maxSecret)
	case s == "":
		return "", errors.New("empty")
	case strings.ContainsAny(s, "\n\r\x00"):
		return "", errors.New("more than one line")
	}
	return s, nil
}
