package enroll

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// FuzzEvents: whatever a watch sends, and however it is cut, reading it ends; what was read
// whole is read the same in small pieces.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{
		`{"type":"ADDED","object":{"kind":"CertificateSigningRequest","metadata":{"name":"a","uid":"u","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"request":"eA==","usages":["client auth"]},"status":{"conditions":[{"type":"Approved","status":"True","lastUpdateTime":null}],"certificate":"eA=="}}}` + "\n",
		`{"type":"DELETED","object":{}}{"type":"BOOKMARK","object":{}}`,
		`{"type":"ERROR","object":{"kind":"Status","code":410,"details":{"retryAfterSeconds":1}}}`,
		`{"type":"MODIFIED","object":null}`, `{"type":`, `[]`, `{"type":"ADDED","object":{"status":{"conditions":[[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all := func(r io.Reader) (out []event, ended bool) {
			for e := newEvents(r); ; {
				ev, err := e.next()
				if err != nil {
					return out, errors.Is(err, io.EOF)
				}
				if ev.kind != "BOOKMARK" && ev.object == nil && ev.status == nil {
					t.Fatalf("%s without its object", ev.kind)
				}
				if out = append(out, ev); len(out) > maxEvents {
					t.Fatal("no end")
				}
			}
		}
		whole, ended := all(bytes.NewReader(text))
		pieces, ended2 := all(iotest.OneByteReader(bytes.NewReader(text)))
		a, _ := json.Marshal(kinds(whole))
		b, _ := json.Marshal(kinds(pieces))
		if !bytes.Equal(a, b) || ended != ended2 {
			t.Errorf("whole %s, in pieces %s", a, b)
		}
		for _, ev := range whole {
			if ev.object != nil {
				_, _ = hindrance(ev.object, &object{}, &x509.CertificateRequest{}, time.Hour)
			}
		}
	})
}

func kinds(events []event) (out []string) {
	for _, e := range events {
		out = append(out, e.kind)
		if e.object != nil {
			text, _ := json.Marshal(e.object)
			out = append(out, string(text))
		}
	}
	return out
}

// FuzzChain: what a signer puts into a request is a chain or an error of one line.
func FuzzChain(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN X-----\nA: b\n\neA==\n-----END X-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		chain, err := parseChain("n", text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Errorf("%q", err.Error())
			}
			return
		}
		again, err := parseChain("n", encodeChain(chain))
		if err != nil || len(again) != len(chain) {
			t.Errorf("%d certificates become %d, %v", len(chain), len(again), err)
		}
		_ = check("n", chain, nil, time.Now())
	})
}

// FuzzCure: no user's name that a server makes up gets out of its quotes.
func FuzzCure(f *testing.F) {
	f.Add(`User "jane" cannot create resource`)
	f.Add(`User "a'; rm -rf \"/" cannot`)
	f.Add(`User "\n\x1b" cannot`)
	f.Fuzz(func(t *testing.T, message string) {
		got := forbiddenCure(message)
		if strings.ContainsAny(got, "\n\r\x1b") || len(got) > 2000 {
			t.Fatalf("%q", got)
		}
		_, user, found := strings.Cut(got, "--user=")
		if !found {
			return
		}
		// As a POSIX shell reads it, user is one word: quoted text and \' alone.
		for rest := user; rest != ""; {
			switch {
			case rest[0] == '\'':
				_, after, ok := strings.Cut(rest[1:], "'")
				if !ok {
					t.Fatalf("open quote: %s", user)
				}
				rest = after
			case strings.HasPrefix(rest, `\'`):
				rest = rest[2:]
			case plain("x" + rest[:1]):
				rest = rest[1:]
			default:
				t.Fatalf("not one word: %s", user)
			}
		}
	})
}

// TestMemory: an answer as large as it may be costs some times its size, not a hundred.
func TestMemory(t *testing.T) {
	for name, text := range map[string]string{
		"items":      `{"kind":"CertificateSigningRequestList","items":[` + strings.Repeat("{},", maxBody/3-100) + "{}]}",
		"conditions": `{"items":[{"status":{"conditions":[` + strings.Repeat("{},", maxBody/3-100) + "{}]}}]}",
		"usages":     `{"items":[{"spec":{"usages":[` + strings.Repeat(`"",`, maxBody/3-100) + `""]}}]}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := json.Unmarshal([]byte(text), new(objectList)); err == nil {
			t.Errorf("%s: accepted", name)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16*maxBody {
			t.Errorf("%s: %d KiB", name, n>>10)
		}
	}
}

// TestBudget: an event ends at 1 MiB, a watch does not.
func TestBudget(t *testing.T) {
	endless := &counter{r: io.MultiReader(strings.NewReader(`{"type":"ADDED","object":"`), letters{})}
	if _, err := newEvents(endless).next(); !errors.Is(err, errTooLarge) || endless.n > 2*maxBody {
		t.Errorf("%v after %d bytes", err, endless.n)
	}
	one := `{"type":"ADDED","object":{"metadata":{"uid":"` + strings.Repeat("x", maxBody/4) + `"}}}`
	many := newEvents(strings.NewReader(strings.Repeat(one, 10)))
	for n := range 10 {
		if e, err := many.next(); err != nil || e.object == nil {
			t.Fatalf("event %d: %v", n, err)
		}
	}
	if _, err := many.next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	if c.n > 64*maxBody {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
