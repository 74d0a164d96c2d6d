//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// roleCrowd is a process of many clients, until it is killed. Its argument is
// a kubeconfig and how many streams to hold: over HTTP/2, HTTP/1.1 and upgraded.
const roleCrowd = "crowd"

// It is played before TestMain looks, which knows the other roles.
func init() {
	if os.Getenv(roleVariable) != roleCrowd {
		return
	}
	if err := playCrowd(os.Getenv(argumentVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playCrowd(argument string) error {
	var kubeconfig string
	var h2, http1, upgrades int
	if _, err := fmt.Sscan(argument, &kubeconfig, &h2, &http1, &upgrades); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client := func(protocols ...string) (*http.Client, *tls.Config, error) {
		c, err := rest.TLSConfigFor(config)
		if err != nil {
			return nil, nil, err
		}
		c.ServerName, c.NextProtos = "127.0.0.1", protocols
		return &http.Client{Transport: &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: len(protocols) == 0}}, c, nil
	}
	one, config1, err := client("http/1.1")
	if err != nil {
		return err
	}
	two, _, err := client()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var failure atomic.Pointer[error]
	each := func(n int, open func() error) {
		// A few at a time: the crowd is to be there, not to knock.
		turns := make(chan struct{}, 16)
		for range n {
			wg.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				if err := open(); err != nil {
					failure.Store(&err)
				}
			})
		}
	}
	watch := func(c *http.Client) func() error {
		return func() error {
			_, _, err := firstLine(context.Background(), c, config.Host+"/watch")
			return err
		}
	}
	each(h2, watch(two))
	each(http1, watch(one))
	each(upgrades, func() error { return crowdUpgrade(config.Host, config1) })
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func crowdUpgrade(server string, config *tls.Config) error {
	address := strings.TrimPrefix(server, "https://")
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	conn := tls.Client(raw, config)
	if _, err := fmt.Fprintf(conn, "GET /exec HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", address); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("upgrade: %s", resp.Status)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }() // or it would be closed as garbage
	return nil
}

// census is an API server that counts who is there: watches, and upgraded
// connections.
type census struct{ there atomic.Int64 }

func (c *census) now() int64 { return c.there.Load() }

func (c *census) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		c.there.Add(1)
		defer c.there.Add(-1)
		echo(w, r.Header.Get("Upgrade"))
	case strings.HasSuffix(r.URL.Path, "/watch"):
		c.there.Add(1)
		defer c.there.Add(-1)
		_, _ = io.WriteString(w, firstEvent)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_, _ = io.WriteString(w, "{}\n")
	}
}
