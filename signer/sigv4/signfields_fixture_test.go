package sigv4

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// ready returns a signer like s whose credentials are at hand.
func ready(t testing.TB, s *Signer) *Signer {
	t.Helper()
	o := s.o
	if _, ok := o.Credentials.(*Credentials); !ok {
		c := NewCredentials(o.Credentials, CacheOptions{Clock: s.now})
		if _, err := c.Retrieve(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Credentials = c
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// flat lays a header out as HTTP/2 sends it, names in the order of the alphabet.
func flat(h http.Header) (list []signer.Field) {
	for name, values := range h {
		for _, v := range values {
			list = append(list, signer.Field{Name: lowerName(name), Value: v})
		}
	}
	slices.SortStableFunc(list, func(a, b signer.Field) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// inHeader is what SignFields made, as SignRequest would have returned it.
func inHeader(out *signer.Fields) http.Header {
	h := http.Header{}
	for _, f := range out.List() {
		h.Add(f.Name, strings.Clone(f.Value))
	}
	return h
}

// signFields is SignRequest by way of SignFields.
func signFields(t testing.TB, s *Signer, r *signer.Request) (http.Header, error) {
	t.Helper()
	return signList(t, ready(t, s), r, flat(r.Header))
}

// signList is SignFields of a signer that is ready.
func signList(t testing.TB, s *Signer, r *signer.Request, sent []signer.Field) (http.Header, error) {
	t.Helper()
	view := *r
	view.Header = nil
	var out signer.Fields
	ok, err := s.SignFields(&view, sent, &out)
	if !ok {
		t.Fatal("SignFields would have to wait")
	}
	if err != nil {
		if len(out.List()) > 0 {
			t.Errorf("%v, and fields %v", err, &out)
		}
		return nil, err
	}
	return inHeader(&out), nil
}

// programFields are those of a program that is built with client-go.
var programFields = []signer.Field{
	{Name: "accept", Value: "application/json"},
	{Name: "user-agent", Value: "controller/v1.2.3 (linux/amd64) kubernetes/0123456"},
	{Name: "accept-encoding", Value: "gzip"},
}

// getRequest is a kubectl get's.
func getRequest() *signer.Request {
	return &signer.Request{
		Method: "GET", Scheme: "https", Authority: "prod.example:6443",
		Path: "/api/v1/namespaces/default/pods", RawQuery: "limit=500", ContentSHA256: signer.EmptySHA256,
	}
}

var getFields = []signer.Field{
	{Name: "accept", Value: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"},
	{Name: "user-agent", Value: "kubectl/v1.36.3 (linux/amd64) kubernetes/0123456"},
	{Name: "kubectl-command", Value: "kubectl get"},
	{Name: "kubectl-session", Value: "fb4b1c9e-6a2f-4f0c-8a3e-6d1f0a7d7c11"},
	{Name: "accept-encoding", Value: "gzip"},
}
