//go:build linux

package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// proxyStatus is one entry of `execproxy status -o json`.
type proxyStatus struct {
	ID         string
	PID        int
	Server     string
	Auth       string
	Identity   string
	Socket     string
	Listeners  []string
	Requests   int64
	Signatures int64
	Handshakes struct{ Full, Resumed int64 }
	Dials      int64
	NotAfter   time.Time `json:"certificateNotAfter"`
	Key        struct {
		Home, Location, Kind string
		Signatures, Failures int64
		Queued, Reopened     int64
	}
	Metrics    string
	Obtentions []struct {
		Provider       string
		Success, Error int
		Seconds        float64
	}
	Renewal struct {
		Next      time.Time
		Request   string
		Waits     string
		Approve   string
		LastError string
		Renewed   int64
	}
}

// status returns this home's running proxies.
func (h *home) status() []proxyStatus {
	h.t.Helper()
	out := h.execproxy("status", "-o", "json").ok(h.t)
	var s struct{ Proxies []proxyStatus }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		h.t.Fatalf("status -o json: %v in %s", err, out)
	}
	return s.Proxies
}

// proxy returns this home's only proxy.
func (h *home) proxy() proxyStatus {
	h.t.Helper()
	s := h.status()
	if len(s) != 1 {
		h.t.Fatalf("%d proxies run, want 1: %+v", len(s), s)
	}
	return s[0]
}

// processes returns the processes of the program under test that were started
// below dir. It goes by their command lines: the rest a daemon hides from a user
// that is not root.
func processes(dir string) map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		program, _, _ := bytes.Cut(line, []byte{0})
		if !bytes.HasPrefix(program, []byte(dir+"/")) || filepath.Base(string(program)) != filepath.Base(suite.bin) {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + e.Name() + "/stat"); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue
		}
		found[pid] = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	}
	return found
}
