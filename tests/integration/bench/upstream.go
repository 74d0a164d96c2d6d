package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// upstreamVariable makes this program the API server; it names the directory
// with the server's certificate.
const upstreamVariable = "EXECPROXY_BENCH_UPSTREAM"

// What the API server serves.
const (
	smallPath = "/api/v1/namespaces/default/configmaps/small"
	listPath  = "/api/v1/namespaces/default/configmaps"
	watchPath = listPath + "?watch=1"
	eventPath = "/bench/event" // POST: one event to all watches

	smallSize = 2 << 10
	listSize  = 1 << 20
)

// upstream is the running API server, as the bench sees it.
type upstream struct {
	url  string
	pki  pki
	stop func()
}

// pki are files: of the CA, of the server and of the one client it knows.
type pki struct{ ca, cert, key, clientCert, clientKey string }

// serveUpstream is the API server: it tells its address on stdout and ends with
// stdin. It asks for a client certificate or, loosely, for a SigV4 signature:
// what verifying costs is not measured here.
func serveUpstream(dir string) error {
	p := files(dir)
	cert, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return err
	}
	pool, err := readPool(p.ca)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           newAPI(),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{cert},
			ClientAuth:   tls.VerifyClientCertIfGiven,
			ClientCAs:    pool,
			MinVersion:   tls.VersionTLS12,
		},
		// As kube-apiserver sets them.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReceiveBufferPerStream: 256 << 10, MaxReadFrameSize: 99 << 10},
	}
	fmt.Printf("https://%s\n", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// api answers with the same bytes every time.
type api struct {
	small, list, bookmark []byte

	mu    sync.Mutex
	event chan struct{} // closed by the next event
}

func newAPI() http.Handler {
	object := func(name string, size int) string {
		o := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"` + name + `","namespace":"default"},"data":{"text":"`
		return o + strings.Repeat("x", size-len(o)-len(`"}}`)) + `"}}`
	}
	var list strings.Builder
	list.WriteString(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`)
	for list.Len() < listSize-2*smallSize {
		list.WriteString(object("item", smallSize) + ",")
	}
	list.WriteString(object("last", listSize-list.Len()-len("]}")) + "]}")
	return &api{
		small:    []byte(object("small", smallSize)),
		list:     []byte(list.String()),
		bookmark: []byte(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"1"}}}` + "\n"),
		event:    make(chan struct{}),
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.TLS.VerifiedChains) == 0 && !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=") {
		http.Error(w, "neither a client certificate nor a signature", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Audit-Id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
	w.Header().Set("Cache-Control", "no-cache, private")
	switch {
	case r.URL.Path == smallPath:
		write(w, a.small)
	case r.URL.Path == listPath && r.URL.Query().Get("watch") == "":
		write(w, a.list)
	case r.URL.Path == listPath:
		a.watch(w, r)
	case r.URL.Path == eventPath && r.Method == http.MethodPost:
		a.mu.Lock()
		close(a.event)
		a.event = make(chan struct{})
		a.mu.Unlock()
	default:
		http.NotFound(w, r)
	}
}

func write(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body)
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w).Flush
	for {
		a.mu.Lock()
		next := a.event
		a.mu.Unlock()
		if _, err := w.Write(a.bookmark); err != nil || flush() != nil {
			return
		}
		select {
		case <-next:
		case <-r.Context().Done():
			return
		}
	}
}

// startUpstream runs this program once more, as the API server.
func startUpstream(ctx context.Context, dir string) (*upstream, error) {
	p, err := writePKI(dir)
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), upstreamVariable+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() { _ = stdin.Close(); _ = cmd.Wait() }
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stop()
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	return &upstream{url: strings.TrimSpace(line), pki: p, stop: stop}, nil
}

func files(dir string) pki {
	f := func(name string) string { return filepath.Join(dir, name) }
	return pki{f("ca.crt"), f("server.crt"), f("server.key"), f("client.crt"), f("client.key")}
}

func writePKI(dir string) (pki, error) {
	p := files(dir)
	now := time.Now()
	template := func(serial int64, name string, usage x509.ExtKeyUsage) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	}
	ca := template(1, "bench-ca", x509.ExtKeyUsageAny)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caKey, err := issue(ca, ca, nil, p.ca, "")
	if err != nil {
		return p, err
	}
	server := template(2, "bench-server", x509.ExtKeyUsageServerAuth)
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	if _, err := issue(server, ca, caKey, p.cert, p.key); err != nil {
		return p, err
	}
	_, err = issue(template(3, "bench-client", x509.ExtKeyUsageClientAuth), ca, caKey, p.clientCert, p.clientKey)
	return p, err
}

// issue writes a certificate and, where keyFile is named, its key. Without a
// signer it signs itself.
func issue(cert, parent *x509.Certificate, signer *ecdsa.PrivateKey, certFile, keyFile string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	if keyFile == "" {
		return key, nil
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)
}

func readPool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}
