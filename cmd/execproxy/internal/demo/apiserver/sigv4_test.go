package apiserver_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

// key is what the clients here sign with.
var key = aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI", SessionToken: "temporary"}

func startSigned(t *testing.T) *apiserver.Server {
	t.Helper()
	return start(t, apiserver.Options{
		Pods: []string{"web"}, Region: "eu-central-1", Service: "execproxy",
		AccessKeys: map[string]apiserver.AccessKey{key.AccessKeyID: {
			Secret: key.SecretAccessKey, SessionToken: key.SessionToken, User: "robot", Groups: []string{"deployers"},
		}},
	})
}

// signed is a request, signed by the SDK's own signer: what this server verifies is AWS' SigV4, not our idea of it.
func signed(t *testing.T, creds aws.Credentials, method, url, body string, at time.Time) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	sum := sha256.Sum256([]byte(body))
	hash := hex.EncodeToString(sum[:])
	req.Header.Set("X-Amz-Content-Sha256", hash)
	if err := v4.NewSigner().SignHTTP(t.Context(), creds, req, hash, "execproxy", "eu-central-1", at); err != nil {
		t.Fatal(err)
	}
	return req
}

const pod = `{"kind":"Pod","metadata":{"name":"new"}}`

func TestSigV4(t *testing.T) {
	s := startSigned(t)
	for _, http2 := range []bool{true, false} {
		c := client(t, s.ClientConfig(), http2)
		var rv apiserver.Review
		send(t, c, signed(t, key, http.MethodPost, s.URL()+whoami, "{}", time.Now()), http.StatusCreated, &rv)
		u := rv.Status.UserInfo
		if u.Username != "robot" || !slices.Equal(u.Groups, []string{"deployers", "system:authenticated"}) {
			t.Errorf("user %+v", u)
		}
		if got := u.Extra["demo.execproxy.io/authenticator"]; !slices.Equal(got, []string{"sigv4"}) {
			t.Errorf("authenticator %q", got)
		}
	}
	c := client(t, s.ClientConfig(), true)
	var p apiserver.Pod // the body that was hashed is also the one that is read
	send(t, c, signed(t, key, http.MethodPost, s.URL()+pods, pod, time.Now()), http.StatusCreated, &p)
	if p.Metadata.Name != "new" {
		t.Errorf("created %+v", p)
	}
}

func TestSigV4Tampered(t *testing.T) {
	s := startSigned(t)
	c := client(t, s.ClientConfig(), true)
	list := s.URL() + pods + "?limit=1"
	get := func(creds aws.Credentials) *http.Request {
		return signed(t, creds, http.MethodGet, list, "", time.Now())
	}
	post := func() *http.Request { return signed(t, key, http.MethodPost, s.URL()+pods, pod, time.Now()) }
	replace := func(r *http.Request, body string) {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte(body))), int64(len(body))
	}

	// The control: as signed, both pass.
	send(t, c, get(key), http.StatusOK, nil)
	send(t, c, post(), http.StatusCreated, nil)

	another := key
	another.SecretAccessKey = "another"
	unknown := key
	unknown.AccessKeyID = "AKIDUNKNOWN"
	stale := key
	stale.SessionToken = "stale"
	for name, r := range map[string]func() *http.Request{
		"query":   func() *http.Request { r := get(key); r.URL.RawQuery = "limit=2"; return r },
		"path":    func() *http.Request { r := get(key); r.URL.Path += "/web"; return r },
		"method":  func() *http.Request { r := get(key); r.Method = http.MethodPost; return r },
		"header":  func() *http.Request { r := post(); r.Header.Set("Content-Type", "application/yaml"); return r },
		"user":    func() *http.Request { r := get(key); r.Header.Set("Impersonate-User", "admin"); return r },
		"body":    func() *http.Request { r := post(); replace(r, strings.Replace(pod, "new", "old", 1)); return r },
		"no body": func() *http.Request { r := post(); replace(r, ""); return r },
		"body and its hash": func() *http.Request {
			r, other := post(), strings.Replace(pod, "new", "old", 1)
			replace(r, other)
			sum := sha256.Sum256([]byte(other))
			r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
			return r
		},
		"host":              func() *http.Request { r := get(key); r.Host = "localhost"; return r },
		"secret":            func() *http.Request { return get(another) },
		"unknown key":       func() *http.Request { return get(unknown) },
		"session token":     func() *http.Request { return get(stale) },
		"old":               func() *http.Request { return signed(t, key, http.MethodGet, list, "", time.Now().Add(-time.Hour)) },
		"no signature":      func() *http.Request { r := get(key); r.Header.Del("Authorization"); return r },
		"half a signature":  func() *http.Request { r := get(key); r.Header.Set("Authorization", "AWS4-HMAC-SHA256 "); return r },
		"a bearer, instead": func() *http.Request { r := get(key); r.Header.Set("Authorization", "Bearer x"); return r },
	} {
		t.Run(name, func(t *testing.T) {
			var st apiserver.Status
			send(t, c, r(), http.StatusUnauthorized, &st)
			for _, secret := range []string{key.SecretAccessKey, key.SessionToken} {
				if strings.Contains(st.Message, secret) {
					t.Error("the refusal shows a secret")
				}
			}
		})
	}
}

// A certificate goes first, as in kube-apiserver; without access keys nobody's signature is good.
func TestSigV4WithoutKeys(t *testing.T) {
	s := start(t, apiserver.Options{})
	c := client(t, s.ClientConfig(), true)
	send(t, c, signed(t, key, http.MethodGet, s.URL()+pods, "", time.Now()), http.StatusUnauthorized, nil)
}
