package clientgo

import (
	"bytes"
	"strings"
	"testing"
)

// Nobody gets past the bridge's door without the password and the one address, whatever
// they say.
func FuzzIntroduced(f *testing.F) {
	b := &bridge{target: "k8s.example:6443", password: "Basic cGluLTI3MTg="}
	const head = "CONNECT k8s.example:6443 HTTP/1.1\r\nHost: k8s.example:6443\r\n"
	for _, s := range []string{
		head + "Proxy-Authorization: Basic cGluLTI3MTg=\r\n\r\n", head + "\r\n",
		head + "Proxy-Authorization: Basic cGluLTI3MTg=\r\n\r\n\x16\x03\x01", strings.Replace(head, "6443", "22", 2) + "Proxy-Authorization: Basic cGluLTI3MTg=\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x00\x05hello", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		status, err := b.introduced(bytes.NewReader(data))
		if (status == 0) != (err == nil) {
			t.Errorf("status %d and %v", status, err)
		}
		if err == nil && (!bytes.Contains(data, []byte("cGluLTI3MTg=")) || !bytes.Contains(bytes.ToLower(data), []byte("k8s.example:6443")) || !bytes.HasPrefix(bytes.TrimLeft(data, "\r\n"), []byte("CONNECT "))) {
			t.Errorf("let in by %q", data)
		}
	})
}
