package systemd

import "errors"

func closeOnExec(int) error { return errors.ErrUnsupported }

func (m *Manager) send([]byte) error { return errors.ErrUnsupported }

// Monotonic is nothing that anybody asks for here.
func Monotonic() string { return "MONOTONIC_USEC=0" }
