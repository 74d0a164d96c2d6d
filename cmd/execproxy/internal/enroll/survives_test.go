package enroll

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSurvives: whatever happens on the way, a request that gets its certificate is seen.
func TestSurvives(t *testing.T) {
	for _, tc := range []struct {
		name    string
		do      func(w *waiting)
		within  time.Duration // of the signing
		trouble string        // told meanwhile
	}{
		{"disconnect", func(w *waiting) { w.n.cut(false) }, time.Second, ""},
		{"server away for an hour", func(w *waiting) {
			w.n.cut(true)
			time.Sleep(time.Hour)
			w.a.approve(w.s.Name)
			w.still()
			w.n.cut(false)
		}, 40 * time.Second, "trying again: cluster.test:6443: listing certificate signing request"},
		{"versions forgotten", func(w *waiting) { w.forget(); w.n.cut(false) }, time.Second, ""},
		{"watch answered 410", func(w *waiting) {
			n := 0
			w.a.set(func() {
				w.a.before = func(verb string, rw http.ResponseWriter, _ *http.Request) bool {
					if n++; verb != "watch" || n > 6 {
						return false
					}
					fail(rw, 410, "Expired", "too old resource version", "")
					return true
				}
			})
			w.n.cut(false)
		}, 5 * time.Second, ""},
		{"errors for a while", func(w *waiting) {
			end := time.Now().Add(time.Minute)
			w.a.set(func() {
				w.a.before = func(_ string, rw http.ResponseWriter, _ *http.Request) bool {
					if time.Now().After(end) {
						return false
					}
					fail(rw, 503, "ServiceUnavailable", "etcdserver: no leader", "")
					return true
				}
			})
			w.n.cut(false)
			time.Sleep(time.Minute)
		}, 40 * time.Second, "etcdserver: no leader (HTTP 503)"},
		{"one refusal, as the transport fetches new credentials", func(w *waiting) {
			first := true
			w.a.set(func() {
				w.a.before = func(_ string, rw http.ResponseWriter, _ *http.Request) bool {
					if !first {
						return false
					}
					first = false
					fail(rw, 401, "Unauthorized", "Unauthorized", "")
					return true
				}
			})
			w.n.cut(false)
		}, time.Second, "Unauthorized"},
		{"a proxy's page", func(w *waiting) {
			first := true
			w.a.set(func() {
				w.a.before = func(verb string, rw http.ResponseWriter, _ *http.Request) bool {
					if verb != "list" || !first {
						return false
					}
					first = false
					_, _ = io.WriteString(rw, "<html>")
					return true
				}
			})
			w.n.cut(false)
		}, time.Second, "the answer makes no sense"},
		{"silent server", func(w *waiting) {
			first := true
			w.a.set(func() {
				w.a.before = func(verb string, rw http.ResponseWriter, r *http.Request) bool {
					if verb != "watch" || !first {
						return false
					}
					first = false
					<-r.Context().Done()
					return true
				}
			})
			w.n.cut(false)
			time.Sleep(exchange)
		}, time.Second, ""},
		{"a watch that is dead", func(w *waiting) {
			first := true
			w.a.set(func() {
				w.a.before = func(verb string, rw http.ResponseWriter, r *http.Request) bool {
					if verb != "watch" || !first {
						return false
					}
					first = false
					_ = http.NewResponseController(rw).Flush()
					<-r.Context().Done()
					return true
				}
			})
			w.n.cut(false)
			time.Sleep(time.Second)
		}, watchLife*3/2 + watchGrace + time.Second, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t, nil)
				time.Sleep(time.Minute)
				tc.do(w)
				w.still()
				if o := w.a.object(w.s.Name); len(o.Status.Conditions) == 0 {
					w.a.approve(w.s.Name)
				}
				w.a.sign(w.s.Name)
				w.issued(tc.within)
				told := fmt.Sprint(w.told)
				if tc.trouble == "" && strings.Contains(told, "trying again") || !strings.Contains(told, tc.trouble) {
					t.Errorf("told %s", told)
				}
			})
		})
	}
}

// forget makes all versions so far too old to watch from, as compaction does. The next list
// is new enough.
func (w *waiting) forget() {
	w.a.set(func() {
		w.a.oldest = w.a.version + 1
		w.a.before = func(verb string, _ http.ResponseWriter, _ *http.Request) bool {
			if verb == "watch" && w.a.count("WATCH") > 3 {
				w.a.set(func() { w.a.oldest = 0 })
			}
			return false
		}
	})
}

// TestLastWords: the certificate may arrive with the news that the request was deleted.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, nil)
		w.a.set(func() {
			w.a.approveLocked(w.s.Name)
			o := w.a.objects[w.s.Name]
			csr, err := o.parse()
			must(t, err)
			o.Status.Certificate = w.a.certificate(csr, time.Hour)
			delete(w.a.objects, w.s.Name)
			w.a.changed("DELETED", o)
		})
		w.issued(0)
	})
}

// TestPolls: rights may be as small as get.
func TestPolls(t *testing.T) {
	for _, forbidden := range [][]string{{"watch"}, {"list", "watch"}, {"list"}} {
		t.Run(fmt.Sprint(forbidden), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t, func(a *api) {
					for _, verb := range forbidden {
						a.forbidden[verb] = true
					}
				})
				time.Sleep(time.Hour)
				w.still()
				if n := len(w.a.requests); n > 300 || w.a.count("WATCH") > 1 {
					t.Errorf("%d requests in an hour, %d watches", n, w.a.count("WATCH"))
				}
				w.a.approve(w.s.Name)
				w.a.sign(w.s.Name)
				w.issued(2 * longestPoll)
			})
		})
	}
}

// TestHostile: no answer makes a wait spin, swell or panic.
func TestHostile(t *testing.T) {
	event := func(kind string, o any) string {
		text, _ := json.Marshal(map[string]any{"type": kind, "object": o})
		return string(text)
	}
	for name, body := range map[string]string{
		"nothing":          "",
		"no JSON":          "x",
		"unknown type":     event("SURPRISE", map[string]any{}),
		"no object":        `{"type":"ADDED"}`,
		"object of a kind": event("ADDED", 1),
		"cut":              `{"type":"ADDED","object":{"metadata":`,
		"deep":             `{"type":"ADDED","object":` + strings.Repeat("[", 100000),
		"error":            event("ERROR", map[string]any{"code": 500}),
		"error of a kind":  event("ERROR", 1),
		"bookmarks":        strings.Repeat(event("BOOKMARK", map[string]any{}), 2*maxEvents),
		"one large event":  `{"type":"ADDED","object":"` + strings.Repeat("x", 2*maxBody),
		"white space":      strings.Repeat(" ", 2*maxBody),
		"many conditions":  event("ADDED", map[string]any{"status": map[string]any{"conditions": make([]struct{}, 100000)}}),
		"many usages":      event("ADDED", map[string]any{"spec": map[string]any{"usages": make([]string, 100000)}}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t, func(a *api) {
					a.before = func(verb string, rw http.ResponseWriter, _ *http.Request) bool {
						if verb != "watch" {
							return false
						}
						_, _ = io.WriteString(rw, body)
						return true
					}
				})
				time.Sleep(2 * time.Minute)
				w.still()
				if n := len(w.a.requests); n > 2*15 {
					t.Errorf("%d requests in two minutes", n)
				}
				w.a.approve(w.s.Name)
				w.a.sign(w.s.Name)
				w.issued(40 * time.Second) // lists tell, too
			})
		})
	}
}
