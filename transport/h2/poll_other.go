//go:build !linux

package h2

import (
	"errors"
	"time"
)

const (
	shutWrite = iota
	shutBoth
)

// A poller is for Linux. Elsewhere every connection waits in Go's own.
type poller struct{}

func (c *Conn) adopt() bool { return false }

func (p *poller) kick(*Conn) {}

func (p *poller) want(*Conn, bool) bool { return false }

func (w *Wire) shutdown(int) (own bool, err error) { return false, nil }
func (w *Wire) letGo()                             {}
func (w *Wire) drainPolled() error                 { return errors.ErrUnsupported }
func (w *Wire) stay(time.Duration)                 {}
