//go:build linux

package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// signed is an API server that keeps who signed each request and when.
type signed struct {
	mu       sync.Mutex
	arrivals []arrival
	skew     time.Duration // its clock is ahead by this
}

type arrival struct {
	key    string // access key id
	at     time.Time
	code   int
	target string
}

func (s *signed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	now := time.Now().Add(s.skew)
	a := arrival{at: time.Now(), code: http.StatusOK, target: r.RequestURI}
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	a.key, _, _ = strings.Cut(rest, "/")
	date, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || date.Sub(now).Abs() > 5*time.Minute {
		a.code = http.StatusForbidden
	}
	s.mu.Lock()
	s.arrivals = append(s.arrivals, a)
	s.mu.Unlock()
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	if a.code != http.StatusOK {
		http.Error(w, "Signature expired", a.code)
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/watch") {
		_, _ = io.WriteString(w, "{}\n")
		return
	}
	for { // an event whenever there is time
		if _, err := io.WriteString(w, firstEvent); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func (s *signed) all() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]arrival(nil), s.arrivals...)
}

// TestCredentialsExpire: credentials live for seconds, under load and an open
// watch. Each is fetched once for all requests, none is used when it has expired,
// and the watch goes on.
func TestCredentialsExpire(t *testing.T) {
	t.Parallel()
	const life = 4 * time.Second
	h := newHome(t)
	s := &signed{}
	url := startTLS(t, "127.0.0.1", s).URL
	calls := h.path("home/calls")
	script := h.path("home/credentials.sh")
	// The key's name carries its number; a line per call says when it ends.
	must(t, os.WriteFile(script, []byte(fmt.Sprintf(`#!/bin/sh
ends=$(date -u -d '+%d seconds' +%%Y-%%m-%%dT%%H:%%M:%%SZ)
echo "$ends" >> %q
n=$(wc -l < %q)
printf '{"Version":1,"AccessKeyId":"AKIATEST%%d","SecretAccessKey":"secret","SessionToken":"token","Expiration":"%%s"}' "$n" "$ends"
`, int(life.Seconds()), calls, calls)), 0o700))
	h.env["AWS_CONFIG_FILE"] = h.file("aws-config", "[default]\ncredential_process = "+script+"\n")
	h.env["AWS_SHARED_CREDENTIALS_FILE"] = h.path("none")
	d := h.open(plugin{server: url, ca: suite.cluster.CA.PEM, config: sigv4Config(), lock: h.lock()})
	client := d.client(t, url)
	client.Timeout = 0
	watch, events, err := firstLine(t.Context(), client, url+"/watch")
	must(t, err)
	defer func() { _ = watch.Body.Close() }()

	begin := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if err := fetch(t.Context(), client, url+"/version"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	keys := func() map[string]int {
		n := map[string]int{}
		for _, a := range s.all() {
			n[a.key]++
		}
		return n
	}
	eventually(t, patience, func() error {
		if n := len(keys()); n < 4 {
			return fmt.Errorf("%d keys were used so far", n)
		}
		return nil
	})
	close(stop)
	wg.Wait()
	took := time.Since(begin)

	data, err := os.ReadFile(calls)
	must(t, err)
	ends := strings.Fields(string(data))
	for _, a := range s.all() {
		n, err := strconv.Atoi(strings.TrimPrefix(a.key, "AKIATEST"))
		if err != nil || n < 1 || n > len(ends) {
			t.Fatalf("signed by %q", a.key)
		}
		end, err := time.Parse(time.RFC3339, ends[n-1])
		must(t, err)
		if a.at.After(end.Add(200 * time.Millisecond)) {
			t.Errorf("%s arrived at %v signed by %s, which expired at %v", a.target, a.at, a.key, end)
		}
	}
	t.Logf("%d requests in %v were signed by %d keys: %v", len(s.all()), took, len(ends), keys())
	// Half of its life is the soonest at which one is exchanged ahead of time; the
	// script's seconds are whole ones.
	if most := int(took/((life-time.Second)/2)) + 2; len(ends) > most {
		t.Errorf("%d calls of the credential process in %v, want at most %d", len(ends), took, most)
	}
	// The watch began with the first key, which has expired by now.
	fresh := time.Now()
	line := make(chan error, 1)
	go func() { line <- after(events, fresh) }()
	select {
	case err := <-line:
		must(t, err)
	case <-time.After(patience):
		t.Error("the watch stands still")
	}
	opened := 0
	for _, a := range s.all() {
		if a.target == "/watch" {
			opened++
		}
	}
	if opened != 1 {
		t.Errorf("the watch was opened %d times upstream", opened)
	}
}

// after reads events until a moment is well past: what is read then was not
// buffered before it.
func after(events *bufio.Reader, moment time.Time) error {
	for {
		line, err := events.ReadString('\n')
		if err != nil || line != firstEvent {
			return fmt.Errorf("watched %q, %v", line, err)
		}
		if time.Since(moment) > 500*time.Millisecond {
			return nil
		}
	}
}

// TestClockSkew: the clock here and that of the server differ by more than a
// signature may be old. The server's first refusal teaches its time.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	for name, skew := range map[string]time.Duration{"behind": 10 * time.Minute, "ahead": -10 * time.Minute, "days": 72 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			s := &signed{skew: skew}
			p := h.serve(h.sigv4Flags(startTLS(t, "127.0.0.1", s).URL)...)
			client := p.http2(t)
			codes := func() (n []int) {
				for _, a := range s.all() {
					n = append(n, a.code)
				}
				return n
			}
			resp, err := client.Post(p.listen+"/first", "application/json", strings.NewReader(`{"kind":"Test"}`))
			must(t, err)
			_ = resp.Body.Close()
			if name == "days" {
				// Nobody signs for another day; the refusal is the answer, at once.
				if resp.StatusCode != http.StatusForbidden || len(codes()) != 1 {
					t.Errorf("answered %s after %v upstream, want one 403", resp.Status, codes())
				}
				p.stderr.await(t, "clock")
				return
			}
			if got := fmt.Sprint(codes()); resp.StatusCode != http.StatusOK || got != "[403 200]" {
				t.Fatalf("answered %s after %s upstream, want 200 after a refusal and a second signature", resp.Status, got)
			}
			p.stderr.await(t, "clock")
			for range 3 {
				get(t, client, p.listen+"/next")
			}
			if got := fmt.Sprint(codes()); got != "[403 200 200 200 200]" {
				t.Errorf("what was learnt must last: %s", got)
			}
		})
	}
}
