package pin

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/term"
)

// ask writes a question to the console and reads a line with echo off. A read that is given
// up ends with the process, or with the next line.
func (s *Source) ask(ctx context.Context, question string) ([]byte, error) {
	in, err := os.OpenFile("CONIN$", os.O_RDWR, 0)
	if err != nil {
		return nil, errNoTTY
	}
	out, err := os.OpenFile("CONOUT$", os.O_RDWR, 0)
	if err != nil {
		_ = in.Close()
		return nil, errNoTTY
	}
	defer out.Close()
	fd := int(in.Fd())
	was, err := term.GetState(fd)
	if err != nil {
		_ = in.Close()
		return nil, errNoTTY
	}
	caught, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if _, err := out.WriteString(question); err != nil {
		_ = in.Close()
		return nil, err
	}
	type answer struct {
		value []byte
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		defer in.Close()
		value, err := term.ReadPassword(fd)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		_, _ = out.WriteString("\r\n")
		if a.err != nil && caught.Err() != nil && ctx.Err() == nil {
			a.err = errSignal
		}
		return a.value, a.err
	case <-caught.Done():
		_ = term.Restore(fd, was)
		_, _ = out.WriteString("\r\n")
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errSignal
	}
}
