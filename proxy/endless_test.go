package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// EndWatches cuts a watch, so that it does not look complete, and nothing else.
func TestEndWatches(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		next := make(chan struct{})
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "x")
			w.(http.Flusher).Flush()
			if r.URL.Path == "/list" {
				<-next
				fmt.Fprint(w, "y")
				return
			}
			<-r.Context().Done()
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		c := f.client(t, in2)
		watch, list := get(t, c, "https://x/pods?a=b&watch=true"), get(t, c, "https://x/list?watch=false")
		defer watch.Body.Close()
		defer list.Body.Close()
		f.EndWatches()
		if b, err := io.ReadAll(watch.Body); err == nil {
			t.Errorf("a cut watch looks complete: %q", b)
		}
		again := get(t, c, "https://x/pods?watch=true")
		_ = again.Body.Close()
		if again.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a watch that begins anew gets %s", again.Status)
		}
		close(next)
		if b, err := io.ReadAll(list.Body); err != nil || string(b) != "xy" {
			t.Errorf("a list was cut, too: %q, %v", b, err)
		}
	})
}

func TestEndless(t *testing.T) {
	for target, want := range map[string]bool{
		"/pods?watch=true": true, "/pods?limit=1&watch=1": true, "/log?follow=true&container=a": true,
		"/pods": false, "/pods?watch=false": false, "/pods?labelSelector=watch%3Dtrue": false, "/pods?xwatch=true": false,
	} {
		if got := endless(httptest.NewRequest(http.MethodGet, target, nil)); got != want {
			t.Errorf("%s: %t", target, got)
		}
	}
	if endless(httptest.NewRequest(http.MethodDelete, "/pods?watch=true", nil)) {
		t.Error("only what is read has no end")
	}
}
