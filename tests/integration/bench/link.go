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
	"strings"
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

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// dialed is when the other side's answer to a connection would have been here:
// a relay accepts at once, a far server does not.
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
			// Whoever dials waits a round trip before it can say anything.
			settled := time.Now().Add(roundWay)
			s.wg.Go(func() { hold(out, in, settled); _ = out.Close() })
			s.wg.Go(func() { hold(in, out, settled); _ = in.Close() })
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
func hold(to io.Writer, from io.Reader, settled time.Time) {
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
		}
		for range way { // or the reader would wait
		}
	})
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
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
		took             []float64 // ms
	}{{name: nameDirect, kubeconfig: direct}, {name: nameMTLS, kubeconfig: through}}
	for i := range b.gets + 1 {
		b.log.Debug("kubectl get", "run", i)
		for j := range rows {
			d, err := get(rows[j].kubeconfig)
			if err != nil {
				return fmt.Errorf("kubectl get, %s: %w", rows[j].name, err)
			}
			if i > 0 { // the first fills kubectl's cache and starts the proxy
				rows[j].took = append(rows[j].took, micros(d)/1000)
			}
		}
	}
	ms := float64(roundWay / time.Millisecond)
	base := median(rows[0].took)
	fmt.Fprintf(b.out, "\n### `kubectl get` of one object, the API server %.0f ms away\n\n| | runs | median, ms | 90th percentile, ms | round trips saved |\n|---|---|---|---|---|\n", ms)
	for _, row := range rows {
		slices.Sort(row.took)
		m := median(row.took)
		saved := "–"
		if row.name != nameDirect {
			b.results.saved = (base - m) / ms
			saved = fmt.Sprintf("%.2f", b.results.saved)
		}
		fmt.Fprintf(b.out, "| %s | %d | %.0f | %.0f | %s |\n", strings.Replace(row.name, nameMTLS, "through a running execproxy", 1), len(row.took), m, row.took[len(row.took)*9/10], saved)
	}
	return nil
}
