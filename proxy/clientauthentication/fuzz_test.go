package clientauthentication

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

func seed(f *testing.F, pattern string, more ...string) {
	names, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range more {
		f.Add([]byte(s))
	}
}

// What is read as a question and asked again is the same question.
func FuzzDecodeInfo(f *testing.F) {
	seed(f, "info-*.json", "", "{}", "null", "[]",
		`{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredentials","spec":{"interactive":true,"cluster":{"server":"https://a","config":null}}} `,
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}{}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := DecodeInfo(data)
		if (c == nil) == (err == nil) {
			t.Fatal(c, err)
		}
		if err != nil {
			oneLine(t, err)
			return
		}
		if c.Kind != Kind || c.Status != nil {
			t.Fatalf("%+v", c)
		}
		again, err := c.EncodeInfo()
		if err != nil {
			if c.Spec.Cluster == nil || c.Spec.Cluster.Server != "" {
				t.Fatalf("%+v: %v", c, err)
			}
			return // a cluster without a server is not for a client to send
		}
		d, err := DecodeInfo(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, err := d.EncodeInfo(); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%s\n%s\n%v", again, third, err)
		}
	})
}

// What is accepted as an answer can be given as one, whatever pieces it comes in.
func FuzzDecodeAnswer(f *testing.F) {
	seed(f, "answer-*.json", "", "{}", "null", answer, answer+answer,
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"proxyConfig":{"url":"unix:///a%20b","certificate-authority-data":"UEVN"}}}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := DecodeAnswer(bytes.NewReader(data))
		if (c == nil) == (err == nil) {
			t.Fatal(c, err)
		}
		d, err2 := DecodeAnswer(iotest.OneByteReader(bytes.NewReader(data)))
		if (err == nil) != (err2 == nil) {
			t.Fatalf("in one piece: %v; byte by byte: %v", err, err2)
		}
		if err != nil {
			oneLine(t, err)
			return
		}
		if !equal(c.Status, d.Status) {
			t.Fatalf("%v and %v", c, d)
		}
		if p := c.Status.ProxyConfig; p != nil {
			path, err := p.SocketPath()
			if err != nil {
				t.Fatal(err)
			}
			if url, err := SocketURL(path); err != nil || url == "" {
				t.Fatal(url, err)
			}
		}
		if c.Status.ExpirationTimestamp.UTC().Year() > 9999 {
			return // RFC 3339 has no such year; with an offset it can be read
		}
		again, err := c.encode(c.Status.ExpirationTimestamp.Add(-1e10))
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if d, err = DecodeAnswer(bytes.NewReader(again)); err != nil || d.Status.Token != c.Status.Token || d.APIVersion != c.APIVersion {
			t.Fatalf("%s: %v, %v", again, d, err)
		}
	})
}

func oneLine(t *testing.T, err error) {
	if bytes.ContainsAny([]byte(err.Error()), "\r\n\x00\x1b") {
		t.Fatalf("%q", err)
	}
}
