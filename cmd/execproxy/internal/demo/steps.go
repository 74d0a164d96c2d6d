package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// patience is the longest that one step may take; all of them together take well under a second.
const patience = 15 * time.Second

// steps prints one line per step: mark, duration, name, and what was seen. The detail stands last, so that the columns
// before it align whatever it says.
type steps struct {
	out     io.Writer
	color   bool
	section string
	count   int
}

// StepError says which step failed.
type StepError struct {
	Section, Step string
	Err           error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("demo: step %q of %q failed: %v", e.Step, e.Section, e.Err)
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

func (s *steps) begin(section string) {
	s.section = section
	_, _ = fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, section))
}

// do runs one step and prints it; f returns what was seen. Its error ends the demonstration.
func (s *steps) do(ctx context.Context, name string, f func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	start := time.Now()
	err := context.Cause(ctx) // interrupted between two steps
	var seen string
	if err == nil {
		seen, err = f(ctx)
	}
	took := time.Since(start)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err) // what stopped it matters more than what it was doing
	}
	mark := s.paint(green, "✓")
	if err != nil {
		mark, seen = s.paint(red, "✗"), err.Error()
	}
	s.count++
	_, werr := fmt.Fprintf(s.out, "  %s %s  %-9s %s\n", mark, s.paint(dim, fmt.Sprintf("%10s", millis(took))), name, seen)
	if err == nil && werr != nil {
		err = fmt.Errorf("printing: %w", werr)
	}
	if err != nil {
		return &StepError{Section: s.section, Step: name, Err: err}
	}
	return nil
}

// millis is a duration in milliseconds to a tenth.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// Select Graphic Rendition parameters (ECMA-48).
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

func (s *steps) paint(sgr, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}
