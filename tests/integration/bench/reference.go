package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// referenceVariable makes this program the proxy that one writes with the
// standard library and the AWS SDK; it names its directory and the API server.
const referenceVariable = "EXECPROXY_BENCH_REFERENCE"

// reference is that proxy: TLS and HTTP/2 over a Unix socket in, net/http's
// ReverseProxy, the SDK's signature, HTTP/2 out. Who cannot build
// aws-sigv4-proxy has it to compare with; it is made of the same parts.
func (b *bench) reference(ctx context.Context) (*target, error) {
	dir, socket, err := b.peerDir()
	if err != nil {
		return nil, err
	}
	_, stop, err := again(ctx, referenceVariable+"="+b.dir+"\n"+dir+"\n"+b.up.url)
	if err != nil {
		return nil, err
	}
	config, err := b.identity()
	if err != nil {
		stop()
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		stop()
		return nil, err
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		stop()
		return nil, err
	}
	return &target{dial: dialH2("unix", socket, b.server(), config), pids: []int{pid}, stop: func() { stop() }}, nil
}

func serveReference(where string) error {
	parts := bytes.Split([]byte(where), []byte("\n"))
	if len(parts) != 3 {
		return fmt.Errorf("%q are not two directories and a URL", where)
	}
	p, dir := files(string(parts[0])), string(parts[1])
	server, err := url.Parse(string(parts[2]))
	if err != nil {
		return err
	}
	pool, err := readPool(p.ca)
	if err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "in.sock"))
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) },
			Transport: &signing{
				sdk:         v4.NewSigner(),
				credentials: aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey, SessionToken: sessionToken()},
				next:        &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
			},
		},
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000},
	}
	if err := writeFile(filepath.Join(dir, "pid"), fmt.Sprint(os.Getpid())); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	fmt.Println("serving")
	if err := srv.ServeTLS(l, "", ""); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// signing is a transport that signs with the SDK, hashing every body up to
// 3 MiB, as execproxy does.
type signing struct {
	sdk         *v4.Signer
	credentials aws.Credentials
	next        http.RoundTripper
}

func (s *signing) RoundTrip(r *http.Request) (*http.Response, error) {
	const most = 3 << 20
	hash := "UNSIGNED-PAYLOAD"
	if r.ContentLength <= most {
		sum := sha256.New()
		if r.Body != nil && r.ContentLength != 0 {
			body := make([]byte, r.ContentLength)
			if _, err := io.ReadFull(r.Body, body); err != nil {
				return nil, err
			}
			_, _ = sum.Write(body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		hash = hex.EncodeToString(sum.Sum(nil))
	}
	r.Header.Set("X-Amz-Content-Sha256", hash)
	if err := s.sdk.SignHTTP(r.Context(), s.credentials, r, hash, "eks", "eu-central-1", time.Now()); err != nil {
		return nil, err
	}
	return s.next.RoundTrip(r)
}
