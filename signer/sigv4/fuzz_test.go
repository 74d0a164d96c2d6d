package sigv4

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

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
	atOnce := ready(f, exact)
	f.Fuzz(func(t *testing.T, method, authority, path, query, name, value, body string) {
		r := &signer.Request{Method: method, Scheme: "https", Authority: authority, Path: path, RawQuery: query,
			Header: http.Header{http.CanonicalHeaderKey(name): {value}}, ContentSHA256: hashOf(body)}
		fields, err := exact.SignRequest(t.Context(), r)
		if list, err2 := signList(t, atOnce, r, flat(r.Header)); !reflect.DeepEqual(list, fields) || fmt.Sprint(err2) != fmt.Sprint(err) {
			t.Fatalf("SignFields %v, %v, SignRequest %v, %v", list, err2, fields, err)
		}
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

// FuzzSignFields: a whole header, as HTTP/2 has it, gets the signature that SignRequest makes
// and that the SDK makes; where there is an error, both have one.
func FuzzSignFields(f *testing.F) {
	f.Add("/api/v1/pods?limit=500", "accept:application/json\nuser-agent:kubectl\nkubectl-command: kubectl  get \n", byte(0))
	f.Add("/a//b?x=+&x=%2b&&=&x", "b:2\na:\nb: 1\tx\na:\u00a0\nz:1\na:x", byte(1))
	f.Add("/%7e/é?a=%e9&a=/", "impersonate-group:a\nimpersonate-group:b\nx-amz-date:theirs\nte:trailers\ncontent-length:007", byte(2))
	f.Add("/", strings.Repeat("n:v\nm:"+strings.Repeat("long ", 50)+"\n", 40), byte(3))
	f.Add("/", "X-Upper:a\n:path:/\nimpersonate-user:a\ncontent-length:0\nimpersonate-user:b", byte(7))
	var signers [8]*Signer
	for i := range signers {
		signers[i] = ready(f, newSigner(f, func(o *Options) {
			o.Path = PathExact
			if i&1 != 0 {
				o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, strings.Repeat("0123456789", 90))
			}
			o.UnsignedSessionToken, o.OmitContentSHA256 = i&2 != 0, i&4 != 0
		}))
	}
	f.Fuzz(func(t *testing.T, target, header string, kind byte) {
		s := signers[kind%8]
		r := &signer.Request{Method: "GET", Scheme: "https", Authority: "host:6443", Header: http.Header{}, ContentSHA256: signer.EmptySHA256}
		r.Path, r.RawQuery, _ = strings.Cut(target, "?")
		clean := *r // what the SDK gets to see
		clean.Header = http.Header{}
		var sent []signer.Field
		lower, length := true, false
		for line := range strings.SplitSeq(header, "\n") {
			name, value, _ := strings.Cut(line, ":")
			sent = append(sent, signer.Field{Name: name, Value: value})
			key := http.CanonicalHeaderKey(name)
			r.Header[key] = append(r.Header[key], value)
			if lowerName(name) != name {
				lower = false
			}
			switch {
			case name == "content-length":
				length = true
			case !replaced(name) && !neverSigned(name):
				clean.Header[key] = append(clean.Header[key], value)
			}
		}
		want, wantErr := s.SignRequest(t.Context(), r)
		got, err := signList(t, s, r, sent)
		var refused *signer.RequestError
		switch {
		case err != nil && !errors.As(err, &refused):
			t.Fatalf("neither signed nor refused: %v", err)
		case !lower: // SignRequest takes names of any case
			return
		case (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want):
			t.Fatalf("SignFields  %v, %v\nSignRequest %v, %v", got, err, want, wantErr)
		case err != nil || length:
			return
		}
		creds, _ := s.kept.kept.Look()
		sdk := sdkSignature(t, &clean, *creds.Value, sdkOptions{region: "eu-central-1", service: "eks", at: testTime,
			omitHash: s.o.OmitContentSHA256, unsignedToken: s.o.UnsignedSessionToken})
		if sdk != "" && got.Get(fieldAuthorization) != sdk {
			t.Fatalf("got  %s\nSDK: %s", got.Get(fieldAuthorization), sdk)
		}
		v := testVerifier()
		v.Path, v.UnsignedSessionToken = PathExact, s.o.UnsignedSessionToken
		if _, err := v.Verify(with(r, got)); err != nil {
			t.Fatalf("signed, and does not verify: %v", err)
		}
	})
}

// FuzzPlain: the quick look at a value says what a slow one says.
func FuzzPlain(f *testing.F) {
	for _, v := range []string{"", " ", "a b", "a  b", "12345678 ", "1234567  9", "123456  ", "\t", "a\x7fb", "\xff\x80  ", "!!!!!!!! !!!!!!! ", "\x20\x21\x20\x21\x20\x1f"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		odd := strings.Contains(v, "  ")
		for i := range len(v) {
			odd = odd || v[i] < ' ' || v[i] == 0x7f
		}
		if plain(v) && odd {
			t.Errorf("%q is taken for plain", v)
		}
		if !odd && !plain(v) && !strings.Contains(v, " !") { // which looks like two spaces at a glance
			t.Errorf("%q is not taken for plain", v)
		}
		if value, want := fieldValue(v), strings.Trim(v, " \t"); strings.Contains(value, "  ") || !strings.Contains(want, "  ") && value != want {
			t.Errorf("%q is signed as %q", v, value)
		}
	})
}

// FuzzPath: the quick look at a path lets nothing through that the slow one would change.
func FuzzPath(f *testing.F) {
	for _, path := range []string{"/", "/a", "/a/", "", "a", "//", "/a//b", "/./a", "/a/..", "/a/...", "/.a", "/a.b/c~d", "/a:b", "/%2e", "/a?b", "/\x80"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		simple := simplePath(path)
		for mode := PathStrict; mode <= PathNormalized; mode++ {
			for _, single := range []bool{false, true} {
				got, err := canonicalPath(path, mode, single)
				if simple && (err != nil || got != path) {
					t.Errorf("%q is taken for simple; mode %d: %q, %v", path, mode, got, err)
				}
				if !simple && err == nil && got == path && mode == PathStrict && !strings.Contains(path, "/.") && !strings.Contains(path, "%") {
					t.Errorf("%q is not taken for simple", path)
				}
			}
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
