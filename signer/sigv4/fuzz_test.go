package sigv4

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// FuzzSign: what is signed verifies, has the signature that the SDK makes of the same
// request wherever the SDK can tell what it means, and is refused once it is changed.
func FuzzSign(f *testing.F) {
	f.Add("GET", "host:6443", "/api/v1/namespaces/a/pods/b:c%2Fd/exec", "command=ls&command=-la&command=/tmp", "X-A", " a   b ", "body")
	f.Add("POST", "[::1]:6443", "/a//b/../c", "a;b=%zz&+=%20&&=x&a", "Impersonate-User", "jane,doe", "")
	f.Add("PUT", "host:443", "/%E1%88%B4/.%2e", "x=%e1%88%b4&\xff=1", "Accept", "\ta", "x")
	s := newSigner(f)
	exact := newSigner(f, func(o *Options) { o.Path = PathExact })
	bound := newSigner(f, func(o *Options) { o.BindTarget = true; o.Path = PathExact })
	f.Fuzz(func(t *testing.T, method, authority, path, query, name, value, body string) {
		r := &signer.Request{Method: method, Scheme: "https", Authority: authority, Path: path, RawQuery: query,
			Header: http.Header{http.CanonicalHeaderKey(name): {value}}, ContentSHA256: hashOf(body)}
		fields, err := exact.SignRequest(t.Context(), r)
		if err != nil {
			var refused *signer.RequestError
			if !errors.As(err, &refused) {
				t.Fatalf("neither signed nor refused: %v", err)
			}
			if _, err := s.SignRequest(t.Context(), r); err == nil {
				t.Fatal("strict, and accepts what exact refuses")
			}
			return
		}
		v := testVerifier()
		v.Path = PathExact
		sent := with(r, fields)
		if _, err := v.Verify(sent); err != nil {
			t.Fatalf("signed, and does not verify: %v", err)
		}
		if strictFields, err := s.SignRequest(t.Context(), r); err == nil && strictFields.Get(fieldAuthorization) != fields.Get(fieldAuthorization) {
			t.Fatal("strict and exact sign differently")
		}
		clean := &signer.Request{Method: r.Method, Scheme: r.Scheme, Authority: r.Authority, Path: r.Path, RawQuery: r.RawQuery,
			Header: http.Header{}, ContentSHA256: r.ContentSHA256}
		low := strings.ToLower(name)
		if !replaced(low) && !neverSigned(low) && low != "content-length" {
			clean.Header = r.Header
		}
		// The SDK takes default ports off, and splits IPv6 authorities wrongly there.
		if !strings.HasSuffix(authority, ":443") && !strings.HasSuffix(authority, ":") && low != "content-length" {
			want := sdkSignature(t, clean, testCredentials, sdkOptions{region: "eu-central-1", service: "eks", at: testTime})
			if got := fields.Get(fieldAuthorization); want != "" && got != want {
				t.Fatalf("got  %s\nSDK: %s", got, want)
			}
		}
		for what, change := range changes {
			changed := with(sent, nil)
			change(changed)
			if changed.Method == sent.Method && changed.Path == sent.Path && changed.RawQuery == sent.RawQuery &&
				changed.Authority == sent.Authority && changed.ContentSHA256 == sent.ContentSHA256 &&
				changed.Header.Get("Impersonate-User") == sent.Header.Get("Impersonate-User") {
				continue
			}
			if _, err := v.Verify(changed); err == nil {
				t.Fatalf("another %s: accepted", what)
			}
		}
		// With the target bound, nothing about path and query can change.
		fields, err = bound.SignRequest(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		sent = with(r, fields)
		if _, err := v.Verify(sent); err != nil {
			t.Fatal(err)
		}
		sent.RawQuery += "&"
		if _, err := v.Verify(sent); err == nil {
			t.Fatal("bound, and another query is accepted")
		}
	})
}

// FuzzVerify: no Authorization that was not made with the key is accepted, and none panics.
func FuzzVerify(f *testing.F) {
	sent := signed(f, newSigner(f), testRequest())
	f.Add(sent.Header.Get(fieldAuthorization), sent.Header.Get(fieldDate), sent.RawQuery)
	f.Add("AWS4-HMAC-SHA256 Credential=AKIDTEST/20260901/eu-central-1/eks/aws4_request, SignedHeaders=host, Signature=", "20260901T120000Z", "")
	f.Add("", "", "X-Amz-Signature=a&X-Amz-Credential=%zz&X-Amz-Expires=1")
	good := sent.Header.Get(fieldAuthorization)
	f.Fuzz(func(t *testing.T, authorization, date, query string) {
		r := with(testRequest(), sent.Header)
		r.Header[fieldAuthorization], r.Header[fieldDate], r.RawQuery = []string{authorization}, []string{date}, query
		for _, presigned := range []bool{false, true} {
			if presigned {
				delete(r.Header, fieldAuthorization)
			}
			v := testVerifier()
			v.Presigned = presigned
			_, err := v.Verify(r)
			if err != nil {
				continue
			}
			c, _ := parseAuthorization(authorization)
			want, _ := parseAuthorization(good)
			same := canonicalQuery(pairs(query)) == canonicalQuery(pairs(sent.RawQuery))
			if presigned || hexOf(c.signature) != hexOf(want.signature) || date != sent.Header.Get(fieldDate) || !same {
				t.Fatalf("accepted: %q, %q, %q", authorization, date, query)
			}
		}
	})
}
