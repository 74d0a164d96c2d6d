package clientauthentication

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const answer = `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}`

// The writer does not close: the answer is complete with its last brace.
func TestDecodeAnswerDoesNotWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write([]byte(answer)) }()
	done := make(chan error, 1)
	go func() {
		c, err := DecodeAnswer(r)
		if err == nil && c.Status.Token != "t" {
			err = errors.New("another token")
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("DecodeAnswer waits for more than the document")
	}
}

func TestDecodeAnswer(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"plain":         strings.NewReader(answer),
		"byte by byte":  iotest.OneByteReader(strings.NewReader(answer)),
		"pretty":        strings.NewReader("\n" + strings.ReplaceAll(answer, ",", ",\n ") + "\n"),
		"more behind":   strings.NewReader(answer + "and more"),
		"unknown field": strings.NewReader(strings.Replace(answer, `"token"`, `"future":[],"token"`, 1)),
		"null fields":   strings.NewReader(strings.Replace(answer, `"token"`, `"proxyConfig":null,"expirationTimestamp":null,"clientKeyData":null,"token"`, 1)),
		"with a spec":   strings.NewReader(strings.Replace(answer, `"status"`, `"spec":{"interactive":"?"},"status"`, 1)),
	} {
		if c, err := DecodeAnswer(r); err != nil || c.Status.Token != "t" || c.APIVersion != V1 || c.Kind != Kind {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

func TestDecodeAnswerRefuses(t *testing.T) {
	const canary = "s3cr3t-canary"
	with := func(status string) string { return strings.Replace(answer, `{"token":"t"}`, status, 1) }
	ca := `,"certificate-authority-data":"UEVN"`
	for _, c := range []struct{ name, data, says string }{
		{"nothing", "", "stdout is empty"},
		{"blank", "\n\n", "stdout is empty"},
		{"text", "Error: " + canary, "not JSON"},
		{"cut", `{"status":{"token":"` + canary, "middle"},
		{"array", `["` + canary + `"]`, "not a JSON object"},
		{"version", strings.Replace(answer, "k8s.io/v1", canary, 1), "apiVersion"},
		{"v2", strings.Replace(answer, "k8s.io/v1", "k8s.io/v2", 1), "v2 is not supported"},
		{"kind", strings.Replace(answer, Kind, Kind+"s", 1), "kind"},
		{"no status", strings.Replace(answer, `"status"`, `"stat"`, 1), "no status"},
		{"null status", with(`null`), "no status"},
		{"empty status", with(`{}`), "no credential"},
		{"empty token", with(`{"token":""}`), "no credential"},
		{"half a pair", with(`{"clientKeyData":"` + canary + `"}`), "together"},
		{"time", with(`{"token":"t","expirationTimestamp":"` + canary + `"}`), "RFC 3339"},
		{"wrong type", with(`{"token":{"` + canary + `":1}}`), "status.token has the wrong type"},
		{"base64", with(`{"proxyConfig":{"url":"unix:///a","certificate-authority-data":"` + canary + `"}}`), "base64"},
		{"token beside", with(`{"token":"` + canary + `","proxyConfig":{"url":"unix:///a"` + ca + `}}`), "token beside"},
		{"no CA", with(`{"proxyConfig":{"url":"unix:///a"}}`), "certificate-authority-data"},
		{"tcp", with(`{"proxyConfig":{"url":"https://` + canary + `"` + ca + `}}`), "scheme"},
		{"huge", with(`{"token":"` + strings.Repeat("x", MaxAnswer) + `"}`), "more than 1048576 bytes"},
		{"endless", strings.Repeat(" ", MaxAnswer+2), "more than 1048576 bytes"},
	} {
		got, err := DecodeAnswer(strings.NewReader(c.data))
		if err == nil || got != nil {
			t.Errorf("%s: decoded %v, %v", c.name, got, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q", c.name, err, c.says)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error repeats what was read: %q", c.name, err)
		}
	}
	if _, err := DecodeAnswer(strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("%v is not io.EOF", err)
	}
	if _, err := DecodeAnswer(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(answer)))); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%v is not the reader's error", err)
	}
}
