package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	linkName = "kubectl get over a slow link"
	oneWay   = 25 * time.Millisecond
	roundWay = 2 * oneWay
)

// slowLink is a TCP relay to the API server that holds back everything for as
// long as the way takes.
type slowLink struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu          sync.Mutex
	conns       map[net.Conn]struct{}
	first, last time.Time // something was to go there, and the last came back
}

func newSlowLink(server string) (*slowLink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &slowLink{listener: l, conns: map[net.Conn]struct{}{}}
	s.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server)
			if err != nil {
				_ = in.Close()
				continue
			}
			s.keep(in, out)
			s.asked()
			// The relay accepts at once. From a far server the answer would take a
			// round trip, and the client could say nothing before it.
			settled := time.Now().Add(roundWay)
			s.wg.Go(func() { hold(out, in, settled, s.asked, nothing); _ = out.Close() })
			s.wg.Go(func() { hold(in, out, settled, nothing, s.answered); _ = in.Close() })
		}
	})
	return s, nil
}

func (s *slowLink) keep(all ...net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range all {
		s.conns[c] = struct{}{}
	}
}

func nothing() {}

func (s *slowLink) asked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.IsZero() {
		s.first = time.Now()
	}
}

func (s *slowLink) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

// took is the time from the first question since the last call to the last
// answer.
func (s *slowLink) took() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.last.Sub(s.first)
	s.first, s.last = time.Time{}, time.Time{}
	return d
}

func (s *slowLink) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// hold copies, everything as much later as one way takes. What is said before
// the connection stands counts as said then.
func hold(to io.Writer, from io.Reader, settled time.Time, read, written func()) {
	type piece struct {
		due  time.Time
		data []byte
	}
	way := make(chan piece, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := range way {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
			written()
		}
		for range way { // or the reader would wait
		}
	})
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			read()
			now := time.Now()
			if now.Before(settled) {
				now = settled
			}
			way <- piece{now.Add(oneWay), buf[:n]}
		}
		if err != nil {
			break
		}
	}
	close(way)
	wg.Wait()
}

// link measures one kubectl get, as a person runs it, with the API server far
// away: with the certificate in the kubeconfig, and through a running proxy.
// kubectl's cache of what the API server has is warm in both.
func (b *bench) link(ctx context.Context) error {
	if b.gets == 0 || !b.runs(linkName) {
		return nil
	}
	far, err := newSlowLink(b.server())
	if err != nil {
		return err
	}
	defer far.close()
	url := "https://" + far.listener.Addr().String()
	h, err := b.newHome()
	if err != nil {
		return err
	}
	direct, through := filepath.Join(h.dir, "direct"), filepath.Join(h.dir, "through")
	if err := writeFile(direct, b.kubeconfig(url)); err != nil {
		return err
	}
	// The plugin is found by its name.
	h.env[0] = "PATH=" + filepath.Dir(b.execproxy) + string(os.PathListSeparator) + os.Getenv("PATH")
	cmd := exec.CommandContext(ctx, b.execproxy, "kubeconfig", "--kubeconfig", direct)
	cmd.Env = h.env
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("execproxy kubeconfig: %w%s", err, stderrOf(err))
	}
	if err := writeFile(through, string(text)); err != nil {
		return err
	}
	defer h.stopAll(context.WithoutCancel(ctx))

	get := func(kubeconfig string) (time.Duration, error) {
		cmd := exec.CommandContext(ctx, b.kubectl, "--kubeconfig", kubeconfig, "get", "configmap", "small", "-o", "name")
		cmd.Env = h.env
		return timed(cmd)
	}
	rows := []struct {
		name, kubeconfig string
		took, trips      []float64 // ms, and round trips on the link
	}{{name: "direct", kubeconfig: direct}, {name: "through a running execproxy", kubeconfig: through}}
	for i := range b.gets + 1 {
		for j := range rows {
			row := &rows[j]
			b.log.Debug("kubectl get", "run", i, "way", row.name)
			_ = far.took()
			d, err := get(row.kubeconfig)
			if err != nil {
				return fmt.Errorf("kubectl get, %s: %w", row.name, err)
			}
			if i > 0 { // the first fills kubectl's cache and starts the proxy
				row.took = append(row.took, micros(d)/1000)
				row.trips = append(row.trips, float64(far.took())/float64(roundWay))
			}
		}
	}
	fmt.Fprintf(b.out, "\n### `kubectl get` of one object, the API server %v away\n\n| | runs | median, ms | 90th percentile, ms | of it on the link, round trips |\n|---|---|---|---|---|\n", roundWay)
	for _, row := range rows {
		slices.Sort(row.took)
		fmt.Fprintf(b.out, "| %s | %d | %.0f | %.0f | %.2f |\n", row.name, len(row.took), median(row.took), row.took[len(row.took)*9/10], median(row.trips))
	}
	b.results.link = &saved{median(rows[0].trips) - median(rows[1].trips), median(rows[0].took) - median(rows[1].took)}
	fmt.Fprintf(b.out, "\nThe proxy saves %.2f round trips and, its plugin's time and the handshake with it taken off, %.0f ms.\n", b.results.link.trips, b.results.link.ms)
	return nil
}

// saved is what a running proxy saves a kubectl get.
type saved struct{ trips, ms float64 }
