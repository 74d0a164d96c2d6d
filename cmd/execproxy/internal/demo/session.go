package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
	"github.com/execproxy/execproxy/proxy/client"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// session is one client with its lock, and the proxy that lives as long as it does.
type session struct {
	d      *demo
	client *client.Client
	cred   *clientauthentication.ExecCredential
	socket string
	pid    int
	stderr lines // the plugin's
	ended  bool
}

// open takes the lock of a session; nothing is executed yet.
func (d *demo) open(id identity) (*session, error) {
	config, err := json.Marshal(id.extension)
	if err != nil {
		return nil, fmt.Errorf("encoding the extension: %w", err)
	}
	s := &session{d: d}
	s.client, err = client.New(client.Options{
		Command: d.Executable,
		Args:    []string{"exec"},
		Env:     slices.Concat(d.place.env, id.env),
		Dir:     d.place.dir,
		Cluster: clientauthentication.Cluster{
			Server:                   d.server.URL(),
			CertificateAuthorityData: d.server.CA(),
			Config:                   config,
		},
		LockFile: filepath.Join(d.place.dir, id.name+".lock"),
		Stderr:   &s.stderr,
		Timeout:  patience,
	})
	if err != nil {
		return nil, err
	}
	d.sessions = append(d.sessions, s)
	return s, nil
}

// start executes the plugin and reads its document.
func (s *session) start(ctx context.Context) (string, error) {
	if err := s.client.Start(ctx); err != nil {
		return "", err
	}
	cred, err := s.client.Credential(ctx)
	if err != nil {
		return "", err
	}
	if cred.Status == nil || cred.Status.ProxyConfig == nil {
		return "", errors.New("the document has no proxyConfig")
	}
	s.cred = cred
	if s.socket, err = cred.Status.ProxyConfig.SocketPath(); err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(s.d.place.dir, s.socket); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("the proxy listens at %s, outside of the private directory", s.socket)
	}
	return fmt.Sprintf("execproxy exec executed, one document read; the proxy is at %s", cred.Status.ProxyConfig.URL), nil
}

// document shows that the document opens the local proxy and nothing else.
func (s *session) document(secrets map[string][]byte) (string, error) {
	text, err := s.cred.Encode()
	if err != nil {
		return "", fmt.Errorf("encoding the document: %w", err)
	}
	if err := holdsNone(text, secrets); err != nil {
		return "", err
	}
	st := s.cred.Status
	if st.Token != "" || st.ClientCertificateData == "" || st.ClientKeyData == "" {
		return "", errors.New("the document must hold a session pair and no token")
	}
	left := time.Until(st.ExpirationTimestamp)
	if left < time.Minute {
		return "", fmt.Errorf("the document expires in %v; less than a minute fails a client's first request", left.Round(time.Second))
	}
	return fmt.Sprintf("%d bytes: a pair for this session, the proxy's address and CA; no upstream credential", len(text)), nil
}

// caller speaks through the proxy.
func (s *session) caller() caller { return caller{s.d.server.URL(), s.client.RoundTripper()} }

// upgrade speaks HTTP/1.1 through the proxy: HTTP/2 has no upgrades.
func (s *session) upgrade(ctx context.Context) (string, error) {
	server, err := url.Parse(s.d.server.URL())
	if err != nil {
		return "", err
	}
	conn, err := s.dial(ctx, true)
	if err != nil {
		return "", err
	}
	return upgrade(ctx, conn, server)
}

// stranger speaks to the socket as another program of this user would: with the CA, without the pair.
func (s *session) stranger(ctx context.Context) (string, error) {
	rt := &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx, false) }}
	defer rt.CloseIdleConnections()
	message, err := caller{s.d.server.URL(), rt}.refused(ctx, podsPath)
	if err != nil {
		return "", err
	}
	return "another client, same socket, no pair: " + message, nil
}

// alone takes the session pair to the API server itself.
func (s *session) alone(ctx context.Context) (string, error) {
	pair, err := s.pair()
	if err != nil {
		return "", err
	}
	rt := directly(s.d.server.ClientConfig(pair))
	defer rt.CloseIdleConnections()
	message, err := caller{s.d.server.URL(), rt}.refused(ctx, podsPath)
	if err != nil {
		return "", err
	}
	return "session pair alone, at the API server itself: " + message, nil
}

// status asks the binary who serves the socket; with the answer the end can be observed.
func (s *session) status(ctx context.Context) (string, error) {
	list, err := s.d.proxies(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range list {
		if p.Socket == s.socket && p.PID > 0 {
			s.pid = p.PID
			return fmt.Sprintf("process %d has served %d requests with %d signature(s) and %d full TLS handshake(s) upstream",
				p.PID, p.Requests, p.Signatures, p.Handshakes.Full), nil
		}
	}
	return "", fmt.Errorf("execproxy status names %d proxies, none of them at %s", len(list), s.socket)
}

// proxy is what execproxy status tells of one, as far as it matters here.
type proxy struct {
	PID        int    `json:"pid"`
	Socket     string `json:"socket"`
	Requests   int    `json:"requests"`
	Signatures int    `json:"signatures"`
	Handshakes struct {
		Full int `json:"full"`
	} `json:"handshakes"`
}

// proxies lists those that run in the private directory: all of them are ours.
func (d *demo) proxies(ctx context.Context) ([]proxy, error) {
	out, err := d.place.command(ctx, d.Executable, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Proxies []proxy `json:"proxies"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("reading execproxy status: %w", err)
	}
	return list.Proxies, nil
}

// end lets the lock go and observes the daemon's end: the process, then the socket.
func (s *session) end(ctx context.Context) (string, error) {
	ended, err := process.WatchEnd(s.pid)
	if err != nil {
		return "", err
	}
	let := time.Now()
	cerr := s.close()
	if err := ended(ctx); err != nil {
		return "", err
	}
	took := time.Since(let)
	if cerr != nil {
		return "", fmt.Errorf("letting go: %w", cerr)
	}
	if _, err := os.Lstat(s.socket); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("process %d is gone, but its socket %s is still there", s.pid, s.socket)
	}
	s.ended = true
	if said := s.stderr.String(); said != "" { // some clients take it for part of the document
		return "", fmt.Errorf("the plugin succeeded, but wrote to stderr: %s", said)
	}
	return fmt.Sprintf("lock let go; process %d and its socket were gone %s later", s.pid, millis(took)), nil
}

// close cuts the connections and lets the lock go.
func (s *session) close() error {
	if s.client == nil {
		return nil
	}
	c := s.client
	s.client = nil
	return c.Close()
}

// lines keeps what a plugin says, for as long as it may say something.
type lines struct {
	mu   sync.Mutex
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(strings.Fields(string(l.text)), " ")
}
