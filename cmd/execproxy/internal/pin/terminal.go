package pin

import (
	"context"
	"errors"
	"fmt"
)

// errNoTTY is what ask returns where a process has no controlling terminal.
var errNoTTY = errors.New("no controlling terminal")

// errSignal is what ask returns when a signal ended the prompt.
var errSignal = errors.New("signal")

// askUser asks on the controlling terminal, whatever standard input and output are.
func (s *Source) askUser(ctx context.Context, again bool) (reading, error) {
	if !s.terminal {
		return reading{}, s.nobody()
	}
	question := s.what
	if again {
		question += " (the last one was refused)"
	}
	value, err := s.ask(ctx, question+": ")
	defer Wipe(value)
	switch {
	case errors.Is(err, errNoTTY):
		return reading{}, s.nobody()
	case errors.Is(err, errSignal):
		return reading{}, s.fail(ErrInterrupted, "", "")
	case err != nil && ctx.Err() != nil:
		return reading{}, s.fail(stopped(ctx), "", "")
	case errors.As(err, new(*Error)):
		return reading{}, err
	case err != nil:
		return reading{}, s.fail(fmt.Errorf("%w: %w", ErrUnreadable, plain(err)), "", ways)
	case len(value) == 0:
		return reading{}, s.fail(ErrCancelled, "nothing was typed", "")
	}
	if problem, cure := typed(value); problem != "" {
		return reading{}, s.fail(ErrMalformed, problem, cure)
	}
	return reading{value: append([]byte(nil), value...)}, nil
}
