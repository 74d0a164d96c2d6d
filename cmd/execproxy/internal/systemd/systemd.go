// Package systemd is a service's side of its manager: the descriptors that it is
// passed at the start (sd_listen_fds(3)), and what it tells of itself
// (sd_notify(3)).
//
// Not github.com/coreos/go-systemd: that takes both from the process's own
// environment and believes it (descriptors that are not open, names that do not
// match), and what is left of it then is a datagram.
package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Variables are what a manager says to its service, and to nobody whom the
// service starts.
var Variables = []string{
	"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID",
}

// Fleeting are what a manager says of one start of a service, or of itself: another
// value the next time, whoever the service is (systemd.exec(5)).
var Fleeting = []string{
	"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MAINPID", "MAINPIDFDID", "MANAGERPID", "MANAGERPIDFDID",
	"MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "REMOTE_ADDR", "REMOTE_PORT",
	"TRIGGER_UNIT", "TRIGGER_PATH", "TRIGGER_TIMER_REALTIME_USEC", "TRIGGER_TIMER_MONOTONIC_USEC",
}

// firstFD is the first descriptor that is passed: SD_LISTEN_FDS_START.
const firstFD = 3

// maxFDs bounds what is believed of LISTEN_FDS.
const maxFDs = 256

// A Passed is a descriptor that the manager passed, closed on exec.
type Passed struct {
	Name string // FileDescriptorName= of the socket unit
	File *os.File
}

// A Manager is the service manager that started this process. A nil one is
// none: nothing was passed and nobody is told.
type Manager struct {
	Passed   []Passed
	Watchdog time.Duration // WatchdogSec=; 0: none

	notify string // address of the socket
}

// Take reads what the environment says of a manager, nil where it says nothing.
// What is meant for another process is passed over, as sd_listen_fds(3) does.
func Take(lookup func(string) string) (*Manager, error) {
	m := &Manager{}
	if err := m.takeNotify(lookup("NOTIFY_SOCKET")); err != nil {
		return nil, err
	}
	if err := m.takeWatchdog(lookup("WATCHDOG_USEC"), lookup("WATCHDOG_PID")); err != nil {
		return nil, err
	}
	if err := m.takePassed(lookup("LISTEN_FDS"), lookup("LISTEN_PID"), lookup("LISTEN_FDNAMES")); err != nil {
		return nil, err
	}
	if m.notify == "" && len(m.Passed) == 0 {
		return nil, nil
	}
	return m, nil
}

func (m *Manager) takeNotify(address string) error {
	switch {
	case address == "":
	case strings.HasPrefix(address, "@") && len(address) > 1, filepath.IsAbs(address):
		m.notify = address
	default:
		return fmt.Errorf("NOTIFY_SOCKET is %q, neither an absolute path nor an abstract socket; unset it", address)
	}
	return nil
}

func (m *Manager) takeWatchdog(usec, pid string) error {
	if usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return fmt.Errorf("WATCHDOG_USEC is %q, not a number of microseconds up to a day; unset it", usec)
	}
	m.Watchdog = time.Duration(n) * time.Microsecond
	return nil
}

func (m *Manager) takePassed(count, pid, names string) error {
	if count == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxFDs {
		return fmt.Errorf("LISTEN_FDS is %q, not a number of descriptors up to %d; unset it", count, maxFDs)
	}
	named := strings.Split(names, ":")
	if names != "" && len(named) != n {
		return fmt.Errorf("LISTEN_FDNAMES has %d names for %d descriptors; unset both it and LISTEN_FDS", len(named), n)
	}
	for i := range n {
		name := "unknown" // as sd_listen_fds_with_names(3)
		if names != "" {
			name = named[i]
		}
		if err := closeOnExec(firstFD + i); err != nil {
			return fmt.Errorf("LISTEN_FDS is %d, but descriptor %d is not open (%w); unset it", n, firstFD+i, err)
		}
		m.Passed = append(m.Passed, Passed{name, os.NewFile(uintptr(firstFD+i), name)})
	}
	return nil
}

// Forget takes the variables out of a list NAME=value. What a service starts
// must neither speak for it nor take its descriptors for its own.
func Forget(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(Variables, name)
	})
}

// Notify sends assignments, NAME=value, in one datagram.
func (m *Manager) Notify(assignments ...string) error {
	if m == nil || m.notify == "" {
		return nil
	}
	for i, a := range assignments {
		assignments[i] = oneLine(a) // a second line would be another assignment
	}
	return m.send([]byte(strings.Join(assignments, "\n")))
}

// Told reports whether anybody is told anything.
func (m *Manager) Told() bool { return m != nil && m.notify != "" }

// Close closes what was passed.
func (m *Manager) Close() error {
	if m == nil {
		return nil
	}
	var errs []error
	for _, p := range m.Passed {
		errs = append(errs, p.File.Close())
	}
	m.Passed = nil
	return errors.Join(errs...)
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// Listens reports whether anything was passed.
func (m *Manager) Listens() bool { return m != nil && len(m.Passed) > 0 }
