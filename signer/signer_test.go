package signer_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

func TestEmptySHA256(t *testing.T) {
	sum := sha256.Sum256(nil)
	if got := hex.EncodeToString(sum[:]); got != signer.EmptySHA256 {
		t.Errorf("EmptySHA256 = %s, want %s", signer.EmptySHA256, got)
	}
}

func TestTarget(t *testing.T) {
	for _, tc := range []struct{ path, query, want string }{
		{"/", "", "/"},
		{"/api/v1/pods", "watch=1&watch=2", "/api/v1/pods?watch=1&watch=2"},
		{"/a%2Fb", "x=%2f", "/a%2Fb?x=%2f"},
	} {
		r := signer.Request{Path: tc.path, RawQuery: tc.query}
		if got := r.Target(); got != tc.want {
			t.Errorf("Target() = %q, want %q", got, tc.want)
		}
	}
}

// TestFromReceived sends raw bytes to a real server: the view must hold the same bytes.
func TestFromReceived(t *testing.T) {
	got := make(chan *signer.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view, err := signer.FromReceived(r, signer.EmptySHA256)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			view = nil
		}
		got <- view
	}))
	defer server.Close()
	for _, tc := range []struct{ target, path, query string }{
		{"/a%2fb//c/../d;e?command=ls&command=-la&x=%2F+", "/a%2fb//c/../d;e", "command=ls&command=-la&x=%2F+"},
		{"/?", "/", ""},
		{"/p?a?b=c", "/p", "a?b=c"},
		{"http://elsewhere/", "", ""},
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: [::1]:6443\r\nConnection: close\r\n\r\n", tc.target)
		view := <-got
		conn.Close()
		switch {
		case tc.path == "":
			if view != nil {
				t.Errorf("%s: got a view, want an error", tc.target)
			}
		case view == nil || view.Path != tc.path || view.RawQuery != tc.query:
			t.Errorf("%s: got %+v, want path %q, query %q", tc.target, view, tc.path, tc.query)
		case view.Authority != "[::1]:6443" || view.Scheme != "http" || view.Method != "GET":
			t.Errorf("%s: got %+v", tc.target, view)
		}
	}
}

func TestRequestErrorIsAClientError(t *testing.T) {
	err := fmt.Errorf("forward: %w", &signer.RequestError{Field: "query", Problem: "a raw semicolon"})
	var status interface{ StatusCode() int }
	if !errors.As(err, &status) || status.StatusCode() != http.StatusBadRequest {
		t.Errorf("%v: no status 400", err)
	}
	if want := "forward: sign request: query: a raw semicolon"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// staticSigner shows how little a scheme needs.
type staticSigner struct{ name, value string }

func (s staticSigner) SignRequest(context.Context, *signer.Request) (http.Header, error) {
	return http.Header{s.name: {s.value}}, nil
}

func ExampleRequestSigner() {
	var s signer.RequestSigner = staticSigner{"X-Audience", "prod"}
	r := &signer.Request{Method: "GET", Scheme: "https", Authority: "prod:6443", Path: "/version"}
	fields, err := s.SignRequest(context.Background(), r)
	fmt.Println(fields, err)
	// Output: map[X-Audience:[prod]] <nil>
}
